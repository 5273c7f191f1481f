"""Pages that were granted to a store, from the daemon's answer until each is published, given up or kept for ever."""

from __future__ import annotations

import numpy as np

from pagetier.client.async_copy.arena_pages import Indices, located
from pagetier.client.reservation import Outcome, Reservation, StoreResult
from pagetier.kernels.layout.frames import Frames

_NONE = np.zeros(0, np.intp)


class GrantedPages:
    """A reservation whose session is held until let_go(). For one thread at a time.

    open: granted pages that are neither published nor given up, ascending.
    """

    def __init__(self, reservation: Reservation) -> None:
        self.open = reservation.granted
        self._reservation = reservation
        self._session = reservation.session
        if self._session is not None:
            self._session.hold()

    def locate(self, pages: Indices, page_bytes: int) -> Frames | None:
        """Where granted pages lie, as many as can be found, from the first on."""
        session = self._session
        if session is None or not session.usable:
            return None
        return located(session, self._reservation.entries[pages].tolist(), page_bytes)

    def publish(self, pages: Indices) -> int:
        """Makes pages readable; how many were not doomed meanwhile."""
        before = self._reservation.publish(_NONE).stored
        self.open = np.setdiff1d(self.open, pages, assume_unique=True)
        return len(pages) - before + self._reservation.publish(pages).stored

    def abandon(self, pages: Indices) -> None:
        """Gives pages up. Nobody writes to them any more."""
        self.open = np.setdiff1d(self.open, pages, assume_unique=True)
        self._reservation.abandon(pages)

    def keep(self) -> StoreResult:
        """Open pages stay as they are, and the session held, until this process ends."""
        self._reservation.keep()
        codes = np.frombuffer(self._reservation.publish(_NONE).codes, np.uint8).copy()
        codes[self.open] = Outcome.REFUSED
        return StoreResult(codes.tobytes())

    def let_go(self, took_ns: int) -> None:
        """Ends the hold; no page is open any more. took_ns: what copying took, for the statistics."""
        if self._session is not None:
            self._session.count_time(0, took_ns)
            self._session.unhold()

    @property
    def result(self) -> StoreResult:
        """What became of the pages by now; those that are open are pending."""
        told = self._reservation.publish(_NONE)
        codes = np.frombuffer(told.codes, np.uint8).copy()
        codes[self.open] = Outcome.PENDING
        return StoreResult(codes.tobytes(), told.reason)
