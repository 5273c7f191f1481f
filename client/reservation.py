"""Reservations: memory that the daemon granted for pages, writing and publishing them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.store_result import CODES, Outcome, StoreResult
from pagetier.kernels.host.buffers import Access, HostBuffer, HostPages, pages_of
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import ReserveOutcome, Session, answer_columns
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Reserved
from pagetier.shm.row_arrays import entries_of, flags_of, serials_of

_T = TypeVar("_T", bound=np.generic)
_Entries = npt.NDArray[np.uint32]
_Serials = npt.NDArray[np.uint64]
_GRANTED: Final = int(ReserveOutcome.GRANTED)
_FIRST_PAGES: Final = np.arange(256)
_FIRST_PAGES.flags.writeable = False
_NO_ENTRIES: Final = entries_of(b"")
_NO_SERIALS: Final = serials_of(b"")


def _granted_pages(outcomes: bytes) -> npt.NDArray[np.intp]:
    """Returns the pages that were granted, ascending. That all of them are is the usual case, and a prompt is short."""
    if outcomes.count(_GRANTED) == len(outcomes) <= len(_FIRST_PAGES):
        return _FIRST_PAGES[: len(outcomes)]
    pages: npt.NDArray[np.intp] = (flags_of(outcomes) == _GRANTED).nonzero()[0]
    return pages


def _at(values: npt.NDArray[_T], pages: npt.NDArray[np.intp]) -> npt.NDArray[_T]:
    """Returns the values of these pages, which ascend; without a copy if they are all pages."""
    return values if len(pages) == len(values) else values[pages]


class Reservation:
    """Memory for pages, which is written and then published or abandoned. A `with` block abandons the rest.

    A store has four stages. Only the first sends a message, so a daemon that hangs delays no store that has its memory.

    1. Reserve: the daemon grants frames, and makes an entry for each page that no match finds yet.
    2. Copy: the writer fills its part. The daemon does not use the frames for another page until each writer has
       published or abandoned its part, or is dead.
    3. Publish: the writer marks its part as done in shared memory. The last part makes the page readable, for the next
       match in any process: so the bytes must be there before.
    4. Report: a page that was doomed in between, because it took too long or was flushed, counts as rejected.

    After a death before the third stage no match has seen the page: the daemon dooms it, and its frames return.

    Pages are counted from 0 in the order of the keys; len() is the number of keys. One thread at a time may
    use a reservation. Dropping it abandons it.

    Attributes:
        granted: The pages to write: those for which there is memory.
        open: Those of them that are neither published nor abandoned, ascending.
        session: The mapped segments, for code that copies on its own; None if no page was granted.
        entries: u32, the entry of each page, for code that copies on its own; none if the daemon was not asked.
    """

    def __init__(self, part: Part) -> None:
        """Makes an empty reservation of this part of each page, for grant()."""
        self.granted = self.open = _FIRST_PAGES[:0]
        self.session: Session | None = None
        self.entries, self._serials = _NO_ENTRIES, _NO_SERIALS
        self._granted_serials: set[int] = set()
        self._part = part
        self._codes = bytearray()
        self._reason = ""

    def grant(self, session: Session, granted_serials: dict[int, set[int]], answer: Reserved) -> Reservation:
        """Fills the reservation with the daemon's answer to a session, and extends the serials that it was granted.

        An exception of a signal handler may end it; then it is called again. Objects that own the pages must not be
        made here: one that such an exception drops would abandon them.

        Returns:
            The reservation.
        """
        pages = answer_columns(answer.pages)
        granted, codes = _granted_pages(pages.outcomes), bytearray(pages.outcomes.translate(CODES))
        entries, serials = entries_of(pages.entries), serials_of(pages.serials)
        # A greeting names these serials from now on: a daemon that this process attaches to next keeps the frames too.
        of_part = granted_serials.setdefault(self._part.index, set())
        if len(granted) == len(serials):  # an array would take longer
            of_part.update(memoryview(pages.serials).cast("Q"))
        else:
            of_part.update(serials[granted].tolist())
        self.entries, self._serials, self._granted_serials = entries, serials, of_part
        self._codes, self._reason = codes, answer.reason
        self.granted = self.open = granted
        self.session = session
        if granted.size:
            self.__class__ = OpenReservation
        return self

    @classmethod
    def rejected(cls, pages: int, reason: str, part: Part) -> Reservation:
        """Returns a reservation in which all pages are rejected for this reason."""
        rejected = Reservation(part)
        rejected._codes, rejected._reason = bytearray([Outcome.REFUSED]) * pages, reason
        return rejected

    def write(self, page: int, buffer: HostBuffer, offset: int = 0) -> None:
        """Copies a buffer into a granted page, from byte `offset` of the page on.

        After the client was closed nothing is copied, and publish() reports the page as rejected. Raises TypeError if
        `buffer` is not host memory.

        Raises:
            ValueError: The page was not granted, is already published or abandoned, or the bytes do not fit into it.
        """
        if page not in self.open:
            raise ValueError(f"page {page} is not granted, or is published or abandoned already")
        memory = pages_of(buffer, 1, Access.READ)
        written = offset >= 0 and self._copy(np.array([page]), memory, offset, 1) == 1
        if not written and self.session is not None and self.session.usable:
            raise ValueError(f"{memory.nbytes} bytes at offset {offset} do not fit into page {page}")

    def write_all(self, pages: HostPages, threads: int) -> None:
        """Copies memory into this writer's part of each granted page, and abandons pages that cannot be copied."""
        groups = [(0, self.open)]
        if self._part.index:
            offsets = _at(pages.sizes, self.open) * self._part.index
            # Not np.unique: its first call imports numpy.ma, which a child that is forked during it can never import.
            groups = [(offset, self.open[offsets == offset]) for offset in set(offsets.tolist())]
        for offset, which in groups:
            memory = HostPages(_at(pages.addresses, which), _at(pages.sizes, which), pages.owners)
            copied = self._copy(which, memory, offset, threads)
            self._abandon(which[copied:])

    def gather(self, pages: Blocks, threads: int = 1) -> None:
        """Copies this rank's part of all granted pages from its cache. May be called again.

        Skipped pages are abandoned.

        Raises:
            ValueError: The blocks have another part or another number of pages than the reservation. Also raises as
                PagedCache.storing() does.
        """
        if len(pages) != len(self) or pages.part != self._part:
            raise ValueError(f"{pages.part} of {len(pages)} pages, but {self._part} of {len(self)} pages was reserved")
        transfers = pages.storing
        self._abandon(self.open[pages.slots.skips[self.open]])
        for transfer in transfers:
            which = self.open
            self._abandon(which[self._gather(transfer, which, threads) :])

    def publish(self, pages: npt.NDArray[np.intp] | None = None) -> StoreResult:
        """Finishes this writer's part of granted pages, by default of all. Pages that were doomed since are rejected.

        Pages that are already published or abandoned are not changed.

        Args:
            pages: The pages to publish; None for all that are open.

        Returns:
            What became of all pages of the reservation so far. Open pages count as stored.
        """
        pages = self._open_of(pages)
        if self.session is not None and len(pages):
            self._finish(self.session.publish, pages)
        return StoreResult(bytes(self._codes), self._reason)

    @property
    def result(self) -> StoreResult:
        """What became of all pages so far; open pages are pending."""
        codes = flags_of(self._codes).copy()
        codes[self.open] = Outcome.PENDING
        return StoreResult(codes.tobytes(), self._reason)

    def abandon(self, pages: npt.NDArray[np.intp] | None = None) -> None:
        """Abandons granted pages, by default all: they never become readable, and their memory is released.

        The caller guarantees that no thread and no GPU writes to them any more.
        """
        self._abandon(self._open_of(pages))

    def keep(self) -> None:
        """Neither publishes nor abandons the open pages, whose memory is released when this process ends.

        For pages that a failed device may still write to. They count as rejected.
        """
        self._reject(self.open)
        self._close(self.open)

    def _copy(self, which: npt.NDArray[np.intp], memory: HostPages, offset: int, threads: int) -> int:
        """Returns how many of these pages were copied, from the first on."""
        if self.session is None:
            return 0
        return self.session.copy_in(_at(self.entries, which), memory.addresses, memory.sizes, offset, threads)

    def _gather(self, transfer: Transfer, which: npt.NDArray[np.intp], threads: int) -> int:
        """Returns how many of these pages were copied, from the first on."""
        if self.session is None or not len(which):
            return 0
        slots = transfer.slots
        return self.session.gather(
            self.entries[which],
            transfer.page_bytes,
            transfer.planes,
            slots.pages.take(which),
            slots.blocks,
            slots.block_tokens,
            b"",
            threads,
        )

    def _abandon(self, pages: npt.NDArray[np.intp]) -> None:
        if self.session is not None and len(pages):
            self._finish(self.session.abandon, pages)

    def _finish(self, call: Callable[[_Entries, _Serials, int], bytes | None], pages: npt.NDArray[np.intp]) -> None:
        """Publishes or abandons open pages, once: whatever ends this function, they are closed if `call` was made."""
        arguments = _at(self.entries, pages), _at(self._serials, pages), self._part.index
        results: deque[bytes | None] = deque()
        try:
            results.extend(map(call, *zip(arguments)))  # one call: an exception cannot come between its two halves
            self._finished(pages, results[0])
        except BaseException:  # an exception of a signal handler
            if results:
                self._finished(pages, results[0])
            raise

    def _finished(self, pages: npt.NDArray[np.intp], published: bytes | None) -> None:
        """Closes pages and rejects those that were not published. May be called again.

        It comes after the call in shared memory: a greeting may name a page too many, and never one too few.
        """
        self._granted_serials.difference_update(_at(self._serials, pages).tolist())
        if published is None:
            point("client.gave_up")
            self._reject(pages)
        else:
            point("client.published")
            if 0 in published:
                self._reject(pages[flags_of(published) == 0])
        self._close(pages)

    def _close(self, pages: npt.NDArray[np.intp]) -> None:
        """Closes open pages. All of them, or the first ones, are the usual case, and fast: stores wait for it."""
        left = self.open[len(pages) :]
        if pages is not self.open and pages.tobytes() != self.open[: len(pages)].tobytes():
            left = np.setdiff1d(self.open, pages, assume_unique=True)
        self.open = left
        if not left.size:
            self.__class__ = Reservation

    def _open_of(self, pages: npt.NDArray[np.intp] | None) -> npt.NDArray[np.intp]:
        """Returns those of the pages that are open; None for all pages."""
        if pages is None:
            return self.open
        first = self.open[: len(pages)]
        return first if pages.tobytes() == first.tobytes() else self.open[np.isin(self.open, pages)]

    def _reject(self, pages: npt.NDArray[np.intp]) -> None:
        for page in pages:
            self._codes[page] = Outcome.REFUSED
        if len(pages) and not self._reason:
            self._reason = "some pages were abandoned or expired before they were complete"

    def __len__(self) -> int:
        return len(self._codes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def __repr__(self) -> str:
        return f"<Reservation {len(self.granted)} of {len(self)} pages granted, {len(self.open)} open>"


class OpenReservation(Reservation):
    """A reservation with granted pages that are neither published nor abandoned; its class changes with the last one.

    Only such a reservation has a finalizer. Python drops an exception that comes in a finalizer, and so a Ctrl-C would
    be lost after a store.
    """

    def __del__(self) -> None:
        self.abandon()
