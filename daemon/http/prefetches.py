"""The prefetches that callers asked for, until some time after their end. They are kept in this process only."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

import msgspec

from pagetier.daemon.http.bodies import PrefetchState, PrefetchStatus
from pagetier.daemon.http.located_pages import located
from pagetier.daemon.stats.page_lookup import in_memory
from pagetier.shm._core import Observer
from pagetier.shm.protocol import Fetched, FetchOutcome

MOST: Final = 1024


class _KnownPrefetch(msgspec.Struct):
    """A prefetch of a user; `keys` is empty and `result` set when it has ended.

    Attributes:
        left_out: Pages that were asked for and are not among the keys, because memory has no room for them.
        note: Why not all pages can be read, "" if they can.
    """

    user: int
    keys: bytes
    left_out: int = 0
    note: str = ""
    result: PrefetchStatus | None = None


class Prefetches:
    """The latest prefetches by their ID. On the loop's thread."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._known: dict[str, _KnownPrefetch] = {}

    def begin(self, user: int, keys: bytes, left_out: int = 0, note: str = "") -> str:
        """Returns the ID of a new prefetch; the oldest one that has ended is forgotten if there are too many."""
        if len(self._known) >= MOST:
            self._known.pop(next(self._ended(), next(iter(self._known))))
        number = secrets.token_hex(8)
        self._known[number] = _KnownPrefetch(user, keys, left_out, note)
        return number

    def _ended(self) -> Iterator[str]:
        return (number for number, each in self._known.items() if each.result is not None)

    def end(self, number: str, answer: Fetched) -> None:
        """Notes the daemon's answer."""
        prefetch = self._known.get(number)
        if prefetch is None:
            return
        count = answer.outcomes.count
        prefetch.keys = b""
        prefetch.result = PrefetchStatus(
            state=PrefetchState.DONE,
            pages=len(answer.outcomes) + prefetch.left_out,
            in_memory=count(FetchOutcome.IN_MEMORY),
            pending=count(FetchOutcome.PENDING),
            absent=count(FetchOutcome.ABSENT),
            no_room=count(FetchOutcome.NO_ROOM) + prefetch.left_out,
            reason=answer.reason or prefetch.note,
        )

    async def give_up(self, number: str, reason: str) -> None:
        """Notes that the daemon gave no answer: what is in memory by now is."""
        prefetch = self._known.get(number)
        if prefetch is not None:
            underway = await self._underway(prefetch)
            prefetch.keys = b""
            prefetch.result = msgspec.structs.replace(underway, state=PrefetchState.DONE, reason=reason)

    async def status(self, number: str, user: int) -> PrefetchStatus | None:
        """Returns how far a prefetch of this user is; None if it has none with this ID."""
        prefetch = self._known.get(number)
        if prefetch is None or prefetch.user != user:
            return None
        underway = prefetch.result or await self._underway(prefetch)
        return prefetch.result or underway  # it may have ended by now

    async def _underway(self, prefetch: _KnownPrefetch) -> PrefetchStatus:
        tiers = await located(self._observer, prefetch.keys)
        here, absent = in_memory(tiers), tiers.count(0)
        return PrefetchStatus(
            state=PrefetchState.READING,
            pages=len(tiers) + prefetch.left_out,
            in_memory=here,
            pending=len(tiers) - here - absent,
            absent=absent,
            no_room=prefetch.left_out,
        )
