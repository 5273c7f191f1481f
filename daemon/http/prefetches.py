"""The prefetches that callers asked for, until some time after their end. They are kept in this process only."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterator
from typing import Final

import msgspec

from pagetier.daemon.common import loop_clock
from pagetier.daemon.http.bodies import PrefetchState, PrefetchStatus
from pagetier.daemon.http.channel_messages import Settings
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.http_connection import HttpError
from pagetier.daemon.http.located_pages import located
from pagetier.daemon.stats.namespace_reads import ABSENT, NO_ROOM, NamespaceReads
from pagetier.daemon.stats.page_lookup import PagesOnDisk, in_memory
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.shm._core import Observer
from pagetier.shm.protocol import Fetched, FetchOutcome

MOST: Final = 1024


class _KnownPrefetch(msgspec.Struct):
    """A prefetch of a user; `keys` is empty and `result` set when it has ended.

    Attributes:
        left_out: Pages that were asked for and are not among the keys, because memory has no room for them.
    """

    user: int
    keys: bytes
    left_out: int = 0
    result: PrefetchStatus | None = None


class Prefetches:
    """The latest prefetches by their ID. On the loop's thread."""

    def __init__(self, observer: Observer, daemon: DaemonChannel) -> None:
        self._observer = observer
        self._daemon = daemon
        self._known: dict[str, _KnownPrefetch] = {}
        self._underway: set[asyncio.Task[None]] = set()

    def read_prompt(self, user: int, keys: bytes, timeout: float, note: str) -> str:
        """Begins to read the pages of a prompt.

        Args:
            user: The user of the request.
            keys: The pages, head first.
            timeout: How long to wait for them, in seconds.
            note: Why there may be none, "" if that is not known.

        Returns:
            The ID.
        """
        return self._begin(_KnownPrefetch(user, keys), self._read_prompt(user, keys, timeout, note))

    def read_namespace(self, user: int, found: PagesOnDisk, timeout: float) -> str:
        """Begins to read pages of a namespace that were found only on disk. Returns the ID."""
        prefetch = _KnownPrefetch(user, found.keys, found.left_out)
        return self._begin(prefetch, self._read_namespace(user, found, timeout))

    def _begin(self, prefetch: _KnownPrefetch, reads: Awaitable[PrefetchStatus]) -> str:
        """Forgets the oldest prefetch that has ended if there are too many."""
        if len(self._known) >= MOST:
            self._known.pop(next(self._ended(), next(iter(self._known))))
        number = secrets.token_hex(8)
        self._known[number] = prefetch
        task = asyncio.create_task(self._end(prefetch, reads))
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)
        return number

    def _ended(self) -> Iterator[str]:
        return (number for number, each in self._known.items() if each.result is not None)

    async def _end(self, prefetch: _KnownPrefetch, reads: Awaitable[PrefetchStatus]) -> None:
        """Notes the result. If the daemon gives no answer, what is in memory by now is."""
        try:
            result = await reads
        except HttpError as error:
            underway = await self._count(prefetch)
            result = msgspec.structs.replace(underway, state=PrefetchState.DONE, reason=str(error))
        prefetch.keys, prefetch.result = b"", result

    async def _read_prompt(self, user: int, keys: bytes, timeout: float, note: str) -> PrefetchStatus:
        answer = await self._daemon.fetch(user, keys, timeout)
        count = answer.outcomes.count
        return PrefetchStatus(
            state=PrefetchState.DONE,
            pages=len(answer.outcomes),
            in_memory=count(FetchOutcome.IN_MEMORY),
            pending=count(FetchOutcome.PENDING),
            absent=count(FetchOutcome.ABSENT),
            no_room=count(FetchOutcome.NO_ROOM),
            reason=answer.reason or _why_not_read(answer, note),
        )

    async def _read_namespace(self, user: int, found: PagesOnDisk, timeout: float) -> PrefetchStatus:
        reads, ends = NamespaceReads(self._observer, found), loop_clock.now() + timeout
        while keys := reads.next_keys():
            reads.take(await self._daemon.fetch(user, keys, max(0.0, ends - loop_clock.now())))
        left = {reads.failed: reads.unread}
        return PrefetchStatus(
            state=PrefetchState.DONE,
            pages=found.pages - found.in_memory,
            in_memory=reads.read,
            pending=left.get(FetchOutcome.PENDING, 0),
            absent=left.get(FetchOutcome.ABSENT, 0) + reads.gone,
            no_room=left.get(FetchOutcome.NO_ROOM, 0) + found.left_out,
            reason=reads.reason(why_unlisted(self._observer, self._daemon.settings)),
        )

    async def status(self, number: str, user: int) -> PrefetchStatus | None:
        """Returns how far a prefetch of this user is; None if it has none with this ID."""
        prefetch = self._known.get(number)
        if prefetch is None or prefetch.user != user:
            return None
        underway = prefetch.result or await self._count(prefetch)
        return prefetch.result or underway  # it may have ended by now

    async def _count(self, prefetch: _KnownPrefetch) -> PrefetchStatus:
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


def _why_not_read(answer: Fetched, note: str) -> str:
    """Returns why pages of a prompt were not read, of which the answer says nothing; "" if all were."""
    if FetchOutcome.NO_ROOM in answer.outcomes:
        return NO_ROOM
    return note or ABSENT if FetchOutcome.ABSENT in answer.outcomes else ""


def why_unlisted(observer: Observer, settings: Settings) -> str:
    """Returns why the daemon does not list its pages on disk; "" if it does."""
    return read_status(observer).disk.why_unlisted if settings.has_disk else ""
