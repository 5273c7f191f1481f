"""A store of the disk tier in a folder: several environments, each written by its own thread."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import lmdb

from pagetier.shm.failpoints import point
from pagetier.tiers.base import (
    NO_ROOM,
    DoubtError,
    Incoming,
    Outgoing,
    ReadOutcome,
    ReadResult,
    StoredPages,
    TierError,
    TierState,
    Written,
)
from pagetier.tiers.disk import file_system, reader, saved_lookups, writer
from pagetier.tiers.disk.environment import Environment, ReadReport
from pagetier.tiers.disk.read_priority import ReaderCount
from pagetier.tiers.disk.resize import EnvironmentResize
from pagetier.tiers.disk.store_folder import Options, open_folder, prepare
from pagetier.tiers.disk.writer import Applied, Share

_T = TypeVar("_T")
PROOF_S: Final = 30.0
_AGAIN: Final = 256  # pages whose drop failed, retried with a batch: few, since none of them may be there any more


class DiskStore:
    """A Catalogue in a folder, which is created. Raises TierError if the folder cannot be used.

    A subclass for each layout says what its environments are; pagetier.tiers.worker.open_store chooses one.

    Args:
        folder: The folder.
        cap_bytes: The limit of the size of all files together.
        frame_bytes: The size of a frame.
        environments: The number of environments, each with a thread that writes it.
        proof_seconds: The processor time within which the files of an environment are verified after a power loss;
            after it they are rebuilt empty.
    """

    KIND: ClassVar[type[Environment]]
    """The environments of the store."""
    RESIZE: ClassVar[type[EnvironmentResize[Any]]]
    """What makes one of them fit when it is opened."""

    def __init__(
        self, folder: Path, cap_bytes: int, frame_bytes: int, environments: int = 4, *, proof_seconds: float = PROOF_S
    ) -> None:
        options = self._options = Options(
            folder=folder,
            cap_bytes=cap_bytes,
            frame_bytes=frame_bytes,
            environments=environments,
            proof_seconds=proof_seconds,
            kind=self.KIND,
            resize=self.RESIZE,
        )
        self._readers = ReaderCount()
        self._one_writes = threading.Lock()
        self._count = threading.Lock()
        self._begun = self._done = self._damaged = 0
        self._undropped: set[bytes] = set()
        with contextlib.ExitStack() as undo:
            self._owner = prepare(options)
            undo.callback(os.close, self._owner)
            opened = open_folder(options, self._owner)
            self._environments = opened.environments
            for environment in self._environments:
                undo.callback(environment.close)
            self._threads = [undo.enter_context(ThreadPoolExecutor(1, "tier")) for _ in self._environments]
            self._journal, self._opened, self._note = opened.journal, opened.how, opened.note
            if not self._journal.state.clean:
                self.sync()
            self._undo = undo.pop_all()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} in {self._options.folder}: {self._used()} of {self.capacity} frames>"

    @property
    def capacity(self) -> int:
        """The number of frames that fit."""
        return sum(environment.shape.capacity for environment in self._environments)

    @property
    def pages(self) -> int:
        """The number of pages, as LMDB counts them."""
        return sum(environment.page_count for environment in self._environments)

    def _used(self) -> int:
        return sum(environment.used for environment in self._environments)

    def contents(self) -> Iterator[StoredPages]:
        """Walks one environment after the other. Raises DoubtError if one cannot be walked."""
        for environment in self._environments:
            try:
                listed = environment.take_listed()
                if listed is None:
                    yield from reader.listed(environment)
                while listed:
                    yield listed.pop()  # its memory is free when the receiver has copied it
            except lmdb.Error as error:
                self.distrust()
                raise DoubtError(environment.broke(error)) from error

    def read(self, page: Incoming) -> ReadResult:
        """Looks into each environment: that takes microseconds and needs no map of keys. Raises DoubtError."""
        # An engine waits for a read and nothing waits for a write, so writers pause as long as a read is counted.
        try:
            with self._readers.reading():
                report, environment = self._read(page)
        except DoubtError:
            self.distrust()
            raise
        # A damaged page is dropped at once, so that the next lookup is a plain miss and the page can be stored again.
        if report.result.outcome is ReadOutcome.DAMAGED:
            self._drop_damaged(environment, page.key, report)
        return report.result

    def _read(self, page: Incoming) -> tuple[ReadReport, Environment]:
        *others, last = self._environments
        for environment in others:
            report = reader.read(environment, page)
            if report.result.outcome is not ReadOutcome.ABSENT:
                return report, environment
        return reader.read(last, page), last

    def _drop_damaged(self, environment: Environment, key: bytes, report: ReadReport) -> None:
        self._damaged += 1
        with (
            contextlib.suppress(lmdb.Error, OSError, TierError),
            self._changing(),
        ):  # a page that cannot be dropped is found damaged again
            writer.drop_if(environment, key, report.header)

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Writes one batch at a time, in all environments in parallel. Failed drops are retried with later batches."""
        # The batch is distributed over the environments before any of them changes: a page replaces an older one of its
        # key in the same environment, and a new page goes where most frames are free. Then each environment drops
        # before it stores, since the drops free the frames that the new pages need.
        with self._one_writes:
            tried = [*islice(self._undropped, _AGAIN), *drops]
            written = self._try_to_write(tried, pages)
            self._undropped.difference_update(tried)
            if written.undropped:
                self._undropped |= self._there(tried)
            self._undropped -= {page.key for page, stored in zip(pages, written.stored, strict=True) if stored}
            return written

    def _there(self, keys: Sequence[bytes]) -> set[bytes]:
        headers = (reader.headers(environment, keys) for environment in self._environments)
        return {key for its in headers for key, header in zip(keys, its, strict=True) if header is not None}

    def _try_to_write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        try:
            with self._changing():
                return self._write(drops, pages)
        except OSError as error:
            why = f"{self._options.folder} cannot be written: {error.strerror or error}"
            return Written((False,) * len(pages), (why,) * len(pages), why)

    def _write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        shares = writer.share(self._environments, drops, pages, self._options.frame_bytes)
        work = [one for one in zip(self._threads, self._environments, shares, strict=True) if one[2].has_work]
        futures = [
            thread.submit(writer.apply, environment, share.drops, [pages[at] for at in share.pages], self._readers)
            for thread, environment, share in work
        ]
        return _joined([share for *_, share in work], _results(futures), len(pages))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Counts changes, so that a sync knows whether it covered all of them. Raises OSError."""
        with self._count:
            self._begun += 1
        try:
            # The state file says "dirty" durably before the first byte of a change: after a power loss it is the only
            # sign that the environments may be torn.
            self._journal.mark_dirty()
            point("store.dirty")
            yield
        finally:
            with self._count:
                self._done += 1

    def sync(self) -> None:
        """Syncs all environments at once; the tier is clean then unless something was written at the same time.

        Raises:
            DoubtError: A sync failed. A later sync may report success without it, since the kernel reports an error
                once.
        """
        # The counts are read before the sync. If no change was running then, and none has begun when it ends, the sync
        # covers all of them, and the state file may say "clean".
        when, begun, done = time.time_ns(), self._begun, self._done
        with self._doubting(), ThreadPoolExecutor(len(self._environments)) as threads:
            _results([threads.submit(environment.sync) for environment in self._environments])
            point("store.synced")
            # A sync of a file that was replaced or cut by something else is worth nothing.
            self._check_files()
            with self._count:
                clean = begun == done and self._begun == begun
                with contextlib.suppress(OSError):  # the state file stays true until the next change marks it
                    self._journal.mark_synced(when, clean=clean)

    def _check_files(self) -> None:
        """Raises TierError if the files are not those that were opened, OSError if one is gone."""
        changes = [file_system.replaced(self._owner, self._options.folder)]
        changes += [environment.changed() for environment in self._environments]
        why = next(filter(None, changes), "")
        if why:
            raise TierError(why)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        """Turns any failure inside the block into DoubtError."""
        try:
            with file_system.converted_errors(self._options.folder):
                yield
        except Exception as error:
            self.distrust()
            raise DoubtError(str(error)) from error

    def save_lookups(self, data: bytes) -> None:
        """Keeps these bytes in the folder until take_lookups(), if they fit under the cap."""
        saved_lookups.save(self._options.folder, data, self._options.cap_bytes)

    def take_lookups(self) -> bytes | None:
        """Returns the bytes that were kept, once; None if there are none."""
        return saved_lookups.take(self._options.folder)

    def distrust(self) -> None:
        """Makes the next opening verify each environment."""
        self._journal.distrust()

    def state(self) -> TierState:
        """Returns the state from the files' lengths and the environments' counts.

        Raises DoubtError if files were changed.
        """
        with self._doubting():
            self._check_files()
        with file_system.converted_errors(self._options.folder):
            disk = shutil.disk_usage(self._options.folder)
            file_bytes = sum(environment.file_bytes for environment in self._environments)
        return TierState(
            file_bytes=file_bytes,
            cap_bytes=self._options.cap_bytes,
            used_frames=self._used(),
            capacity=self.capacity,
            disk_free=disk.free,
            disk_total=disk.total,
            last_sync=self._journal.state.last_sync,
            clean=self._journal.state.clean,
            opened=self._opened,
            damaged=self._damaged,
            note=self._note or self._environments[0].note,
        )

    def close(self) -> None:
        """Releases the folder even if the sync fails. Raises DoubtError."""
        with self._undo:
            self.sync()


def _results(futures: Sequence[Future[_T]]) -> list[_T]:
    """Waits for all futures, then raises the error of the first one that failed."""
    wait(futures)
    return [future.result() for future in futures]


def _joined(shares: Sequence[Share], applied: Sequence[Applied], count: int) -> Written:
    reasons = [NO_ROOM] * count
    for share, done in zip(shares, applied, strict=True):
        for at, reason in zip(share.pages, done.reasons, strict=True):
            reasons[at] = reason
    return Written(
        stored=tuple(not reason for reason in reasons),
        reasons=tuple(reasons),
        undropped=next((done.undropped for done in applied if done.undropped), ""),
        disk_bytes=sum(done.disk_bytes for done in applied),
    )
