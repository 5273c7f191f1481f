"""The tier over any store of objects."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from pagetier.shm.page_rows import PAGES_TO_FIND
from pagetier.shm.protocol import Space
from pagetier.tiers.base import (
    SKIPPED,
    TOO_LARGE,
    FleetState,
    Incoming,
    Outgoing,
    PageName,
    ReadOutcome,
    ReadResult,
    TierError,
    Written,
)
from pagetier.tiers.fleet.bounce_buffers import BounceBuffers
from pagetier.tiers.fleet.object_calls import ObjectCalls
from pagetier.tiers.fleet.object_judge import ObjectJudge
from pagetier.tiers.fleet.object_store import ObjectStore
from pagetier.tiers.fleet.object_writer import ObjectWriter
from pagetier.tiers.fleet.objects import object_name, object_names
from pagetier.tiers.fleet.page_packer import PagePacker
from pagetier.tiers.fleet.store_calls import LateReads, StoreCalls

_T = TypeVar("_T")
_ODD_SIZES: Final = "the store's answer is not a size for each object"


class ObjectFleet:
    """A Fleet in a store of objects, one for each page.

    Args:
        store: The store.
        url: Its URL for people, without secrets.
        prefix: The first part of all names.
        packer: How the pages are protected and compressed.
        buffers: The bounce buffers, in the store's memory.
        calls: Runs the store's calls.
    """

    def __init__(
        self, store: ObjectStore, url: str, prefix: str, packer: PagePacker, buffers: BounceBuffers, calls: StoreCalls
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._buffers = buffers
        self._calls = calls
        self._reads = LateReads()
        self._sizes = packer.sizes
        self._judge = ObjectJudge(packer.codec, packer.sizes)
        self._objects = ObjectCalls(store, prefix, self._judge, buffers, calls)
        self._writer = ObjectWriter(self._objects, packer, self._reads)
        self._lock = threading.Lock()
        self._present = 0
        self._has_too_large = False

    def locate(self, names: Sequence[PageName]) -> array[int]:
        """Returns the sizes of the pages. Raises TierError."""
        objects = [object_name(self._prefix, name) for name in names]
        return self._sizes.of(self.ask(lambda: self._objects.store.sizes(objects)), (name.space for name in names))

    def start_locate(self, pages: bytes, table: Sequence[Space], reply: Callable[[array[int], str], None]) -> None:
        """Starts to locate pages, rows of PAGES_TO_FIND, and returns at once.

        `reply` takes their sizes and why the store failed, on the thread of the call: an engine waits for the answer,
        and each change of threads takes time. It is not called only if the call does not return. Raises TierError.
        """
        objects, deadline = object_names(self._prefix, pages, table), self._objects.deadline()
        nothing = array("Q", [0] * len(objects))

        def locate() -> tuple[array[int], str]:
            try:
                lengths = self._calls.twice(lambda: self._objects.store.sizes(objects), deadline)
                sizes = self._sizes.of(lengths, (table[page.space].digest for page in PAGES_TO_FIND.read(pages)))
                return (sizes, "") if len(sizes) == len(objects) else (nothing, _ODD_SIZES)
            except TierError as error:
                return nothing, str(error)
            except Exception:  # noqa: BLE001  a library may return anything; a question without an answer would stay
                return nothing, _ODD_SIZES

        # The reply starts the next question, for which the place of this call must be free.
        self._calls.start(locate, None, deadline, lambda located: reply(*located))

    def write(self, drops: Sequence[bytes], pages: Sequence[Outgoing]) -> Written:
        """Stores the pages that are not there, a few at once. After a failure of the store the others are not tried."""
        done, failed = self._writer.write(pages) if pages else ({}, {})
        self._has_too_large = self._has_too_large or TOO_LARGE in failed.values()
        present = frozenset(number for number, nbytes in done.items() if not nbytes)
        with self._lock:
            self._present += len(present)
        return Written(
            stored=tuple(number in done for number in range(len(pages))),
            reasons=tuple("" if number in done else failed.get(number, SKIPPED) for number in range(len(pages))),
            disk_bytes=sum(done.values()),
            present=present,
        )

    def read(self, page: Incoming) -> ReadResult:
        """Returns what became of a page, after filling its frames from what the store got and verifying them there.

        Waiting for a buffer, the call and its repetition take no longer together than one call may.
        """
        if not self._objects.fits(page.size):  # that is no failure of the store, from which other pages can be read
            self._has_too_large = True
            return ReadResult(ReadOutcome.ABSENT)
        name, deadline = PageName(page.space, page.key), self._objects.deadline()
        try:
            with self._reads.reading():
                _, result = self._objects.get(name, page.size, page.frames, deadline)
        except TierError as error:
            return ReadResult(ReadOutcome.FAILED, str(error))
        # No host can read a damaged object, and no put replaces it: it is removed so that a host that has the page can
        # store it again.
        if result.outcome is ReadOutcome.DAMAGED:
            self._objects.remove_damaged(name, deadline)
        return result

    def remove(self, page: PageName) -> None:
        """Removes a page's object if it is there. Raises TierError."""
        self._objects.remove(page)

    def state(self) -> FleetState:
        """Returns the state without asking the store."""
        return FleetState(
            url=self._url,
            lent_bytes=self._buffers.lent_bytes,
            calls=self._calls.running,
            late=self._calls.late,
            damaged=self._judge.damaged,
            foreign=self._judge.foreign,
            present=self._present,
            note=self._judge.note or (TOO_LARGE if self._has_too_large else ""),
        )

    def silent_s(self) -> float:
        """Returns for how many seconds calls have been running and none has returned."""
        return self._calls.silent_s()

    def close(self) -> None:
        """Closes the store, if it does so in time."""
        with contextlib.suppress(TierError):
            self.ask(self._objects.store.close)

    def ask(self, function: Callable[[], _T]) -> _T:
        """Makes a call that needs no bounce buffer, twice if it fails at once. Raises TierError."""
        return self._objects.ask(function)
