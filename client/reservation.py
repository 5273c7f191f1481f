"""Reservations: memory that the daemon granted for pages, writing and publishing them."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import LinkedSession
from pagetier.client.paged_blocks import Blocks, Part
from pagetier.client.store_result import Outcome, StoreResult
from pagetier.kernels.host.buffers import Access, HostBuffer, HostPages, pages_of
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.cached import CachedProperty
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Reserved

_T = TypeVar("_T", bound=np.generic)
_OUTCOME_OF: Final = {
    ReserveOutcome.GRANTED: Outcome.STORED,
    ReserveOutcome.PRESENT: Outcome.PRESENT,
    ReserveOutcome.PENDING: Outcome.PENDING,
    ReserveOutcome.REFUSED_FULL: Outcome.REFUSED,
    ReserveOutcome.REFUSED_SIZE: Outcome.REFUSED,
    ReserveOutcome.LEFT_OUT: Outcome.LEFT_OUT,
}
_GRANTED: Final = int(ReserveOutcome.GRANTED)
_OUTCOMES: Final = bytes.maketrans(bytes(_OUTCOME_OF), bytes(_OUTCOME_OF.values()))
_FIRST_PAGES: Final = np.arange(256)
_FIRST_PAGES.flags.writeable = False


def _granted_pages(outcomes: bytes) -> npt.NDArray[np.intp]:
    """Returns the pages that were granted, ascending. That all of them are is the usual case, and a prompt is short."""
    if outcomes.count(_GRANTED) == len(outcomes) <= len(_FIRST_PAGES):
        return _FIRST_PAGES[: len(outcomes)]
    pages: npt.NDArray[np.intp] = (np.frombuffer(outcomes, np.uint8) == _GRANTED).nonzero()[0]
    return pages


def _at(values: npt.NDArray[_T], pages: npt.NDArray[np.intp]) -> npt.NDArray[_T]:
    """Returns the values of these pages, which ascend; without a copy if they are all pages."""
    return values if len(pages) == len(values) else values[pages]


class Reservation:
    """Memory for pages, which is written and then published or abandoned.

    A `with` block abandons what was not published.

    Pages are counted from 0 in the order of the keys; len() is the number of keys. Several threads may use a
    reservation if each page is used by one thread at a time. Dropping it abandons it.

    Attributes:
        granted: The pages to write: those for which there is memory.
        open: Those of them that are neither published nor abandoned, ascending.
        session: The mapped segments, for code that copies on its own; None if no page was granted.
    """

    def __init__(self, linked: LinkedSession | None, answer: Reserved, part: Part) -> None:
        """Makes a reservation of the pages that the daemon granted over a connection; None if no page is granted."""
        self.granted = _granted_pages(answer.outcomes)
        self.open = self.granted if linked else self.granted[:0]
        self.session = linked.session if linked else None
        self._answer = answer
        self._granted_serials = linked.granted.setdefault(part.index, set()) if linked else set()
        if len(self.open) == len(answer.outcomes):  # arrays would take longer
            self._granted_serials.update(memoryview(answer.serials).cast("Q"))
        else:
            self._granted_serials.update(_at(self._serials, self.open).tolist())
        self._part = part
        self._codes = bytearray(answer.outcomes.translate(_OUTCOMES))
        self._reason = answer.reason

    @classmethod
    def rejected(cls, pages: int, reason: str, part: Part) -> Self:
        """Returns a reservation in which all pages are rejected for this reason."""
        refused = bytes([ReserveOutcome.REFUSED_FULL]) * pages
        return cls(None, Reserved(0, refused, bytes(4 * pages), bytes(8 * pages), reason), part)

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
        if not written and self._usable:
            raise ValueError(f"{memory.nbytes} bytes at offset {offset} do not fit into page {page}")

    def write_all(self, pages: HostPages, threads: int) -> None:
        """Copies the memory of each granted page into this writer's part of it.

        Pages that cannot be copied are abandoned.
        """
        offsets = pages.sizes[self.open] * self._part.index
        # Not np.unique: its first call imports numpy.ma, which a child that is forked during it can never import.
        for offset, which in [(offset, self.open[offsets == offset]) for offset in set(offsets.tolist())]:
            memory = HostPages(pages.addresses[which], pages.sizes[which], pages.owners)
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
        pages = self._close(pages)
        if self.session is not None and len(pages):
            serials = _at(self._serials, pages)
            stored = self.session.publish(_at(self.entries, pages), serials, self._part.index)
            point("client.published")
            self._granted_serials.difference_update(serials.tolist())
            if 0 in stored:
                self._reject(pages[np.frombuffer(stored, dtype=np.uint8) == 0])
        return StoreResult(bytes(self._codes), self._reason)

    @CachedProperty
    def entries(self) -> npt.NDArray[np.uint32]:
        """u32, the entry of each page, for code that copies on its own."""
        return np.frombuffer(self._answer.entries, dtype=np.uint32)

    @CachedProperty
    def _serials(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._answer.serials, dtype=np.uint64)

    @property
    def result(self) -> StoreResult:
        """What became of all pages so far; open pages are pending."""
        codes = np.frombuffer(self._codes, np.uint8).copy()
        codes[self.open] = Outcome.PENDING
        return StoreResult(codes.tobytes(), self._reason)

    def abandon(self, pages: npt.NDArray[np.intp] | None = None) -> None:
        """Abandons granted pages, by default all: they never become readable, and their memory is released.

        The caller guarantees that no thread and no GPU writes to them any more.
        """
        self._abandon(self.open if pages is None else self._open_of(pages))

    def keep(self) -> None:
        """Neither publishes nor abandons the open pages, whose memory is released when this process ends.

        For pages that a failed device may still write to. They count as rejected.
        """
        kept, self.open = self.open, self.open[:0]
        self._reject(kept)

    @property
    def _usable(self) -> bool:
        return self.session is not None and self.session.usable

    def _copy(self, which: npt.NDArray[np.intp], memory: HostPages, offset: int, threads: int) -> int:
        """Returns how many of these pages were copied, from the first on."""
        if self.session is None:
            return 0
        entries = self.entries[which]
        return self.session.copy_in(entries, memory.addresses, memory.sizes, offset, threads)

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
            self.open = np.setdiff1d(self.open, pages, assume_unique=True)
            serials = self._serials[pages]
            self.session.abandon(self.entries[pages], serials, self._part.index)
            point("client.gave_up")
            self._granted_serials.difference_update(serials.tolist())
            self._reject(pages)

    def _close(self, pages: npt.NDArray[np.intp] | None) -> npt.NDArray[np.intp]:
        """Returns those of the pages that are open, and closes them.

        All of them, or None for all, is fast, because stores wait for it.
        """
        if pages is None or (len(pages) == len(self.open) and pages.tobytes() == self.open.tobytes()):
            pages, self.open = self.open, self.open[:0]
        else:
            pages = self._open_of(pages)
            self.open = np.setdiff1d(self.open, pages, assume_unique=True)
        return pages

    def _open_of(self, pages: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return self.open[np.isin(self.open, pages)]

    def _reject(self, pages: npt.NDArray[np.intp]) -> None:
        for page in pages:
            self._codes[page] = Outcome.REFUSED
        if len(pages) and not self._reason:
            self._reason = "some pages were abandoned or expired before they were complete"

    def __del__(self) -> None:
        self.abandon()

    def __len__(self) -> int:
        return len(self._codes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()

    def __repr__(self) -> str:
        state = "open" if len(self.open) else "closed"
        return f"<Reservation {len(self.granted)} of {len(self)} pages granted, {state}>"
