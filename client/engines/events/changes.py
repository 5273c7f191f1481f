"""Follows where the pages of an engine's requests are, so that the changes can be announced to routers."""

from __future__ import annotations

from typing import Final, Generic

from pagetier.client.client import Client
from pagetier.client.engines.events.table import Change, EventTable, P
from pagetier.shm import clock
from pagetier.shm._core import EventsResult, Session, TierFlag
from pagetier.shm.failpoints import point

MOST_PAGES: Final = 1 << 18


class LocationChanges(Generic[P]):
    """Follows where known pages are, and returns the changes.

    The daemon's ring of events names the pages that have changed. Where a page is now is read from the index, which
    needs no message. So an event that was missed, or that comes twice, cannot make routers believe anything untrue for
    longer than until the next sweep over all pages. If this process dies before it announces what it has read, the next
    one locates the pages of its own requests, whatever was in the ring. Called by one thread at a time.

    Args:
        client: This process's client.
        lease: Seconds for which pages stay announced while there is no daemon, or while its disk is being opened.
        most_pages: The most pages that are announced.
        shares: The keys of a page, one for each division of the ranks.
    """

    def __init__(self, client: Client, lease: float, most_pages: int = MOST_PAGES, shares: int = 1) -> None:
        self._client = client
        self._pages = EventTable[P](most_pages, shares)
        self._session: Session | None = None
        self._served = _Absence(lease)
        self._disk = _Absence(lease)
        self._unfinished = False

    def learn(self, key: bytes, page: P) -> None:
        """Adds a page, which will be located. A page that is known already costs one lookup.

        Args:
            key: The keys of all shares, one after the other.
            page: The page.
        """
        self._pages.learn(key, page)

    @property
    def waits(self) -> bool:
        """Whether pages are still to be located by another call of taken()."""
        return self._unfinished

    def clear(self) -> list[Change[P]]:
        """Removes all pages: this engine cannot load them any more. Returns that they left all tiers."""
        return self._pages.clear()

    def announce_again(self) -> None:
        """Makes taken() return the locations of all pages, because routers have forgotten all of this engine."""
        self._pages.announce_again()

    def taken(self) -> list[Change[P]]:
        """Returns the changes since the last call."""
        now = clock.now()
        session = self._client.session if self._client.attached else None
        served = session is not None and self._read(session)
        changes = self._pages.withdraw() if self._served.record(now, there=served) else []
        if served and session is not None:
            # The ring is read before pages are located: what changes in between is in the ring again for the next call.
            point("client.events_read")
            changes += self._pages.update(session, self._assumed(session, now))
        self._unfinished = served and self._pages.waits
        return changes

    def _read(self, session: Session) -> bool:
        """Reads the ring. Returns False if the daemon records nothing at this time."""
        if session is not self._session:  # another attachment, whose ring may lack what changed before it
            self._session = session
            self._pages.sweep()
        while True:
            seen = session.read_events()
            self._pages.touch(seen.keys)
            if seen.result == EventsResult.MISSED:
                self._pages.sweep()
            if not seen.keys:
                break
        if self._served.is_over:  # all pages were withdrawn: those that are still there are announced again
            self._pages.sweep()
        return seen.result != EventsResult.OFF

    def _assumed(self, session: Session, now: float) -> int:
        """Returns the disk while it may come back with its pages: routers see no gap when its worker is replaced."""
        if self._disk.record(now, there=session.disk_complete):
            self._pages.sweep()
        return TierFlag.DISK if self._disk.lasts else 0


class _Absence:
    """How long something has been absent, up to a limit in seconds."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None
        self.is_over = False

    @property
    def lasts(self) -> bool:
        """Whether it is absent, and has not been for longer than the limit."""
        return self._since is not None and not self.is_over

    def record(self, now: float, *, there: bool) -> bool:
        """Records whether it is there. Returns whether the limit has passed just now."""
        if there:
            self._since, self.is_over = None, False
            return False
        self._since = now if self._since is None else self._since
        was_over, self.is_over = self.is_over, now - self._since >= self._limit
        return self.is_over and not was_over
