"""Storing: what the daemon said to each page of a batch, and the way from there to readable pages."""

from __future__ import annotations

from enum import IntEnum
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.paged_blocks import Blocks, Part
from pagetier.kernels.host.buffers import Access, HostBuffer, HostPages, pages_of
from pagetier.kernels.layout.transfer import Transfer
from pagetier.shm._core import Session
from pagetier.shm.failpoints import point

_GRANTED = 0
_OUTCOMES_FROM_INDEX = bytes.maketrans(bytes(range(5)), bytes([0, 1, 2, 3, 3]))


class Outcome(IntEnum):
    """What became of one page of a store."""

    STORED = 0
    PRESENT = 1
    PENDING = 2
    REFUSED = 3


class StoreResult(msgspec.Struct, frozen=True):
    """What became of each page, head first, and why something was refused. codes: an Outcome a byte."""

    codes: bytes
    reason: str = ""

    @property
    def outcomes(self) -> list[Outcome]:
        """One for each page."""
        return [Outcome(code) for code in self.codes]

    @property
    def stored(self) -> int:
        """Pages that are stored: the next match finds them (once all their parts are)."""
        return self.codes.count(Outcome.STORED)

    @property
    def present(self) -> int:
        """Pages that were there already."""
        return self.codes.count(Outcome.PRESENT)

    @property
    def pending(self) -> int:
        """Pages that somebody else is writing."""
        return self.codes.count(Outcome.PENDING)

    @property
    def refused(self) -> int:
        """Pages that were not stored."""
        return self.codes.count(Outcome.REFUSED)

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return (
            f"<StoreResult {self.stored} stored, {self.present} present, {self.pending} pending,"
            f" {self.refused} refused{why}>"
        )


class Answered(msgspec.Struct, frozen=True, eq=False):
    """The daemon's answer, page by page: outcomes (u8), entries (u32), serials (u64)."""

    outcomes: bytes
    entries: bytes
    serials: bytes
    reason: str

    @property
    def granted_serials(self) -> list[int]:
        """The serials of the granted pages."""
        granted = np.frombuffer(self.outcomes, dtype=np.uint8) == _GRANTED
        serials: list[int] = np.frombuffer(self.serials, dtype=np.uint64)[granted].tolist()
        return serials

    @classmethod
    def refused(cls, pages: int, reason: str) -> Self:
        """No page was granted."""
        return cls(bytes([Outcome.REFUSED]) * pages, bytes(4 * pages), bytes(8 * pages), reason)


class Reservation:
    """Room for pages: written to, then published or abandoned. A context manager abandons what was not published.

    Pages are counted from 0 in the order of the keys. May be used by several threads, one page by one at a time.

    granted: the pages that there is room for, those to write. session, entries (u32, one a page): where they are, for
    who copies by himself.
    """

    def __init__(self, session: Session | None, held: set[int], answered: Answered, part: Part) -> None:
        codes = np.frombuffer(answered.outcomes, dtype=np.uint8)
        self.granted: npt.NDArray[np.intp] = np.flatnonzero(codes == _GRANTED)
        self._open = self.granted if session is not None else self.granted[:0]
        self.session = session
        self._held = held
        self._part = part
        self._codes = bytearray(answered.outcomes.translate(_OUTCOMES_FROM_INDEX))
        self.entries = np.frombuffer(answered.entries, dtype=np.uint32)
        self._serials = np.frombuffer(answered.serials, dtype=np.uint64)
        self._reason = answered.reason

    def write(self, page: int, buffer: HostBuffer, offset: int = 0) -> None:
        """Copies a buffer into a granted page, from byte `offset` of the page on.

        After the client was closed it copies nothing, and publish() says so. Raises ValueError if the page was not
        granted, or is not open any more, or the bytes do not fit into it; TypeError for what is no buffer.
        """
        if page not in self._open:
            raise ValueError(f"page {page} is not granted")
        memory = pages_of(buffer, 1, Access.READ)
        written = offset >= 0 and self._copy(np.array([page]), memory, offset, 1) == 1
        if not written and self._usable:
            raise ValueError(f"{memory.nbytes} bytes from {offset} on do not fit into page {page}")

    def write_all(self, pages: HostPages, threads: int) -> None:
        """Copies the memory of all pages into those that were granted, each at this writer's part."""
        offsets = pages.sizes[self._open] * self._part.index
        # Not np.unique: its first call imports numpy.ma, and a child that is forked meanwhile can import that no more.
        for offset, which in [(offset, self._open[offsets == offset]) for offset in set(offsets.tolist())]:
            memory = HostPages(pages.addresses[which], pages.sizes[which], pages.owners)
            copied = self._copy(which, memory, offset, threads)
            self._give_up(which[copied:])

    def gather(self, pages: Blocks, threads: int = 1) -> None:
        """Copies a rank's part of all granted pages out of its cache, as far as the blocks say; may be called again.

        Pages that are to be skipped are given up. Raises ValueError for blocks of another part or number of pages, and
        as PagedCache.storing does.
        """
        if len(pages) != len(self) or pages.part != self._part:
            raise ValueError(f"{pages.part} of {len(pages)} pages, but {self._part} of {len(self)} was reserved")
        transfers = pages.storing
        self._give_up(self._open[pages.slots.skips[self._open]])
        for transfer in transfers:
            which = self._open
            self._give_up(which[self._gather(transfer, which, threads) :])

    def publish(self, pages: npt.NDArray[np.intp] | None = None) -> StoreResult:
        """Finishes this writer's part of granted pages, of all by default. A page that was doomed meanwhile is refused.

        Pages that are not open any more are left as they are.
        """
        pages = self._take(pages)
        if self.session is not None and len(pages):
            serials = self._serials[pages]
            stored = self.session.publish(self.entries[pages], serials, self._part.index)
            point("client.published")
            self._held.difference_update(serials.tolist())
            self._refuse(pages[np.frombuffer(stored, dtype=np.uint8) == 0])
        return StoreResult(bytes(self._codes), self._reason)

    def abandon(self, pages: npt.NDArray[np.intp] | None = None) -> None:
        """Gives granted pages up, all by default: they are never readable, and their room comes back.

        The caller guarantees that nobody, no GPU either, writes to them any more.
        """
        self._give_up(self._open if pages is None else self._those_open(pages))

    def keep(self) -> None:
        """Neither publishes nor gives up what is open: it comes back when this process ends.

        For pages that a device that failed may still write to.
        """
        self._open = self._open[:0]

    @property
    def _usable(self) -> bool:
        return self.session is not None and self.session.usable

    def _copy(self, which: npt.NDArray[np.intp], memory: HostPages, offset: int, threads: int) -> int:
        """How many of these pages were copied, from the first on."""
        if self.session is None:
            return 0
        entries = self.entries[which]
        return self.session.copy_in(entries, memory.addresses, memory.sizes, offset, threads)

    def _gather(self, transfer: Transfer, which: npt.NDArray[np.intp], threads: int) -> int:
        """How many of these pages were copied, from the first on."""
        if self.session is None or not len(which):
            return 0
        slots = transfer.slots
        return self.session.gather(
            self.entries[which],
            transfer.page_bytes,
            transfer.planes,
            slots.pages[which],
            slots.blocks,
            slots.block_tokens,
            b"",
            threads,
        )

    def _give_up(self, pages: npt.NDArray[np.intp]) -> None:
        if self.session is not None and len(pages):
            self._open = np.setdiff1d(self._open, pages, assume_unique=True)
            serials = self._serials[pages]
            self.session.abandon(self.entries[pages], serials, self._part.index)
            point("client.gave_up")
            self._held.difference_update(serials.tolist())
            self._refuse(pages)

    def _take(self, pages: npt.NDArray[np.intp] | None) -> npt.NDArray[np.intp]:
        """Those of the pages that are open; they are not any more. None means all, and is quick: stores wait for it."""
        if pages is None:
            pages, self._open = self._open, self._open[:0]
        else:
            pages = self._those_open(pages)
            self._open = np.setdiff1d(self._open, pages, assume_unique=True)
        return pages

    def _those_open(self, pages: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        return self._open[np.isin(self._open, pages)]

    def _refuse(self, pages: npt.NDArray[np.intp]) -> None:
        for page in pages:
            self._codes[page] = Outcome.REFUSED
        if len(pages) and not self._reason:
            self._reason = "some pages were given up before they were whole"

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
        state = "open" if len(self._open) else "closed"
        return f"<Reservation {len(self.granted)} of {len(self)} pages granted, {state}>"
