"""Pages that were granted to a store, until each is published, abandoned or kept until the process ends."""

from __future__ import annotations

import numpy as np

from pagetier.client.async_copy.arena_pages import Indices, located
from pagetier.client.reservation import Outcome, Reservation, StoreResult
from pagetier.kernels.layout.frames import Frames

_NONE = np.zeros(0, np.intp)


class GrantedPages:
    """A reservation whose arena is retained until release(). For one thread at a time.

    Attributes:
        open: The granted pages that are neither published nor abandoned, ascending.
    """

    def __init__(self, reservation: Reservation) -> None:
        self.open = reservation.granted
        self._reservation = reservation
        self._session = reservation.session
        if self._session is not None:
            self._session.retain_arena()

    def locate(self, pages: Indices, page_bytes: int) -> Frames | None:
        """Returns the location of granted pages, of as many as can be found, from the first on.

        None without a session.
        """
        session = self._session
        if session is None or not session.usable:
            return None
        return located(session, self._reservation.entries[pages].tolist(), page_bytes)

    def publish(self, pages: Indices) -> int:
        """Makes pages readable and returns how many. Pages that were doomed since are not counted."""
        before = self._reservation.publish(_NONE).stored
        self.open = np.setdiff1d(self.open, pages, assume_unique=True)
        return len(pages) - before + self._reservation.publish(pages).stored

    def abandon(self, pages: Indices) -> None:
        """Abandons pages. The caller guarantees that no copies to them are running."""
        self.open = np.setdiff1d(self.open, pages, assume_unique=True)
        self._reservation.abandon(pages)

    def keep(self) -> StoreResult:
        """Keeps open pages, and the session, until this process ends. Returns a result in which they are rejected."""
        self._reservation.keep()
        codes = np.frombuffer(self._reservation.publish(_NONE).codes, np.uint8).copy()
        codes[self.open] = Outcome.REFUSED
        return StoreResult(codes.tobytes())

    def release(self, took_ns: int) -> None:
        """Releases the arena when no page is open any more, and counts `took_ns` nanoseconds of copying."""
        if self._session is not None:
            self._session.count_time(0, took_ns)
            self._session.release_arena()

    @property
    def result(self) -> StoreResult:
        """What became of the pages so far; open pages are pending."""
        current = self._reservation.publish(_NONE)
        codes = np.frombuffer(current.codes, np.uint8).copy()
        codes[self.open] = Outcome.PENDING
        return StoreResult(codes.tobytes(), current.reason)
