"""The disk tier: several LMDB environments, each written by a thread of its own."""

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
from typing import Final, TypeVar

import lmdb

from ...shm.points import point
from ..base import NO_ROOM, DoubtError, Held, Incoming, Outcome, Outgoing, ReadResult, TierError, TierState, Written
from . import files, placing, reading, writing
from .environment import Environment
from .opening import Options, open_folder, prepare, telling
from .placing import Share
from .reading import Look
from .turns import Turns
from .writing import Applied

_T = TypeVar("_T")
_AGAIN: Final = 256  # pages that could not be dropped, tried beside a batch: few enough where none can be still


class LmdbTier:
    """A Tier in a folder, which it makes. Raises TierError where that can not be used.

    cap_bytes: all its files together never take more. environments: how many, each with a thread that writes it.
    proof_seconds: what proving them sound after a power loss may take; then they are rebuilt empty.
    """

    def __init__(
        self, folder: Path, cap_bytes: int, frame_bytes: int, environments: int = 4, *, proof_seconds: float = 30.0
    ) -> None:
        options = self._options = Options(
            folder=folder,
            cap_bytes=cap_bytes,
            frame_bytes=frame_bytes,
            environments=environments,
            proof_seconds=proof_seconds,
        )
        self._turns = Turns()
        self._one_writes = threading.Lock()
        self._count = threading.Lock()
        self._begun = self._done = self._damaged = 0
        self._undropped: set[bytes] = set()
        with contextlib.ExitStack() as undo:
            self._owner = prepare(options)
            undo.callback(os.close, self._owner)
            opened = open_folder(options)
            self._environments = opened.environments
            for environment in self._environments:
                undo.callback(environment.close)
            self._threads = [undo.enter_context(ThreadPoolExecutor(1, "tier")) for _ in self._environments]
            self._journal, self._opened, self._note = opened.journal, opened.how, opened.note
            if not self._journal.state.clean:
                self.sync()
            self._undo = undo.pop_all()

    def __repr__(self) -> str:
        return f"<LmdbTier in {self._options.folder}: {self._used()} of {self.room} frames>"

    @property
    def room(self) -> int:
        """In frames."""
        return sum(environment.shape.room for environment in self._environments)

    def _used(self) -> int:
        return sum(environment.used for environment in self._environments)

    def contents(self) -> Iterator[Held]:
        """Environment by environment. Raises DoubtError where one can not be walked."""
        for environment in self._environments:
            try:
                yield from reading.listed(environment)
            except lmdb.Error as error:
                self.distrust()
                raise DoubtError(environment.broke(error)) from error

    def read(self, page: Incoming) -> ReadResult:
        """Probes each environment: a look takes microseconds, and no map has to be kept. Raises DoubtError."""
        try:
            with self._turns.reading():
                look, environment = self._look(page)
        except DoubtError:
            self.distrust()
            raise
        if look.result.outcome is Outcome.DAMAGED:
            self._drop_damaged(environment, page.key, look)
        return look.result

    def _look(self, page: Incoming) -> tuple[Look, Environment]:
        *others, last = self._environments
        for environment in others:
            look = reading.read(environment, page)
            if look.result.outcome is not Outcome.ABSENT:
                return look, environment
        return reading.read(last, page), last

    def _drop_damaged(self, environment: Environment, key: bytes, look: Look) -> None:
        self._damaged += 1
        with (
            contextlib.suppress(lmdb.Error, OSError, TierError),
            self._changing(),
        ):  # what can not be dropped is found damaged again
            writing.drop_if(environment, key, look.header)

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """One batch at a time; the environments' shares of it at once. What could not be dropped goes when it can."""
        with self._one_writes:
            tried = [*islice(self._undropped, _AGAIN), *drops]
            written = self._try_to_write(tried, pages)
            self._undropped.difference_update(tried)
            if written.undropped:
                self._undropped |= self._there(tried)
            self._undropped -= {page.key for page, stored in zip(pages, written.stored, strict=True) if stored}
            return written

    def _there(self, keys: Sequence[bytes]) -> set[bytes]:
        headers = (reading.headers(environment, keys) for environment in self._environments)
        return {key for its in headers for key, header in zip(keys, its, strict=True) if header is not None}

    def _try_to_write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        try:
            with self._changing():
                return self._write(drops, pages)
        except OSError as error:
            why = f"{self._options.folder} can not be written: {error.strerror or error}"
            return Written((False,) * len(pages), (why,) * len(pages), why)

    def _write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        shares = placing.share(self._environments, drops, pages, self._options.frame_bytes)
        futures = [
            thread.submit(writing.apply, environment, share.drops, [pages[at] for at in share.pages], self._turns)
            for thread, environment, share in zip(self._threads, self._environments, shares, strict=True)
        ]
        return _joined(shares, _results(futures), len(pages))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Counts changes, so that a sync knows whether it saw them all. Raises OSError."""
        with self._count:
            self._begun += 1
        try:
            self._journal.mark_dirty()
            point("store.dirty")
            yield
        finally:
            with self._count:
                self._done += 1

    def sync(self) -> None:
        """All environments at once; clean then unless something was written meanwhile, or the state file can not be.

        Raises DoubtError where it fails: a later sync may call done what this one could not, as the system tells once.
        """
        when, begun, done = time.time_ns(), self._begun, self._done
        with self._doubting(), ThreadPoolExecutor(len(self._environments)) as threads:
            _results([threads.submit(environment.sync) for environment in self._environments])
            point("store.synced")
            self._look_at_files()
            with self._count:
                clean = begun == done and self._begun == begun
                with contextlib.suppress(OSError):  # whatever it says now is true until the next change marks it anew
                    self._journal.mark_synced(when, clean=clean)

    def _look_at_files(self) -> None:
        """Raises TierError where they are not those any more that were opened, OSError where one is gone."""
        owned = files.is_still(self._owner, self._options.folder / files.OWNER)
        changes = [f"{self._options.folder} is another folder now"] if not owned else []
        changes += [environment.changed() for environment in self._environments]
        why = next(filter(None, changes), "")
        if why:
            raise TierError(why)

    @contextlib.contextmanager
    def _doubting(self) -> Iterator[None]:
        """Whatever fails in it raises DoubtError."""
        try:
            with telling(self._options.folder):
                yield
        except Exception as error:
            self.distrust()
            raise DoubtError(str(error)) from error

    def distrust(self) -> None:
        """The next opening proves each environment."""
        with contextlib.suppress(OSError):  # whoever is told of the failure says it to the next opening, too
            self._journal.distrust()

    def state(self) -> TierState:
        """From the files' lengths and the environments' own counts. Raises DoubtError where the files were changed."""
        with self._doubting():
            self._look_at_files()
        with telling(self._options.folder):
            disk = shutil.disk_usage(self._options.folder)
            file_bytes = sum(environment.file_bytes for environment in self._environments)
        return TierState(
            file_bytes=file_bytes,
            cap_bytes=self._options.cap_bytes,
            used_frames=self._used(),
            room=self.room,
            disk_free=disk.free,
            disk_total=disk.total,
            last_sync=self._journal.state.last_sync,
            clean=self._journal.state.clean,
            opened=self._opened,
            damaged=self._damaged,
            note=self._note,
        )

    def close(self) -> None:
        """Lets go of the folder whatever the sync says. Raises DoubtError."""
        with self._undo:
            self.sync()


def _results(futures: Sequence[Future[_T]]) -> list[_T]:
    """Waits for all, then raises what the first one that failed did."""
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
