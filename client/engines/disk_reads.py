"""Reads pages on disk while requests wait for their turn, where that is faster than computing them.

Nothing here blocks: reads are sent on the thread of PrefetchThread.
"""

from __future__ import annotations

from typing import Final

from pagetier.client.engines.prefetch_thread import PendingPrefetch, PrefetchThread
from pagetier.client.group_match import GroupMatch
from pagetier.client.load_or_compute import Decision, LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from pagetier.shm import clock

_LEAST_S: Final = 1.0  # the least timeout of a read, whether a request waits for it or not


class DiskReads:
    """The reads from disk of one scheduler, whose thread calls all methods.

    Args:
        thread: Sends the reads.
        rule: Says what is read, and learns how long it takes.
    """

    def __init__(self, thread: PrefetchThread, rule: LoadOrCompute) -> None:
        self._thread, self._rule = thread, rule
        self._awaited: dict[bytes, int] = {}  # by the first key that is read, the end of what is read

    def decide(self, match: GroupMatch, begins: int, now: float) -> Decision:
        """Decides what becomes of the pages of a match on disk, of which the engine lacks those from `begins` on."""
        needed = range(begins, match.available_tokens)
        awaited = min(self._awaited.get(match.first_key_after(match.tokens), 0), needed.stop) - needed.start
        return self._rule.decide(LoadTier.DISK, needed, now, max(0, awaited))

    def read(self, match: GroupMatch, timeout: float) -> PendingPrefetch:
        """Requests the pages of a match on disk. Those that another request awaits are read once.

        Args:
            match: The match. It may be released before the read ends.
            timeout: Seconds for which a request waits; the disk has a second at least.

        Returns:
            The read.
        """
        key, ends, timeout = match.first_key_after(match.tokens), match.available_tokens, max(timeout, _LEAST_S)
        begins = max(match.tokens, min(self._awaited.get(key, 0), ends))
        sent = self._rule.sent(LoadTier.DISK, ends - begins, timeout, clock.now())
        self._awaited[key] = max(ends, begins)

        def ended(part: float) -> None:
            self._awaited.pop(key, None)
            self._rule.ended(sent, part, clock.now())

        return self._thread.submit(match, timeout, ended)
