"""Reads pages of requests from disk and from the fleet while they wait for their turn, and says how long they wait."""

from __future__ import annotations

from typing import Final

from pagetier.client.client import Client
from pagetier.client.engines.fleet_reads import FleetReads
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.group_match import GroupMatch

_DISK_S: Final = 1.0  # the least timeout of a prefetch, whether the request waits for it or not


class TierReads:
    """The reads of all requests. Called by the one thread of vLLM's scheduler; no method blocks.

    Args:
        client: This process's client.
        thread: Sends the requests to the daemon.
        disk_timeout: Seconds that a request may wait for pages on disk.

    Attributes:
        fleet: Asks the fleet and reads from it.
    """

    def __init__(self, client: Client, thread: PrefetchThread, disk_timeout: float) -> None:
        self._client, self._thread, self._disk_timeout = client, thread, disk_timeout
        self.fleet = FleetReads(client, thread)

    @property
    def any_tier(self) -> bool:
        """Whether there is a disk, or a fleet that answers. It is a cheap check."""
        session = self._client.session
        return session is not None and bool(session.disk_bytes or session.asks_fleet)

    def begin_early(self, tracked: RequestState, match: GroupMatch, *, disk: bool, fleet: bool) -> bool:
        """Requests pages of a request that has just arrived.

        Args:
            tracked: The request.
            match: The match of its whole prompt.
            disk: Whether pages on disk are requested, if there are any.
            fleet: Whether the fleet is asked.

        Returns:
            Whether any pages are requested.
        """
        reads_disk = disk and match.available_tokens > match.tokens
        if reads_disk:
            self._thread.submit(match, max(self._disk_timeout, _DISK_S))
        return (fleet and self._ask_fleet(tracked, match, 0)) or reads_disk

    def decide_wait(self, tracked: RequestState, known_tokens: int, now: float) -> bool:
        """Decides whether a request that is due waits for pages that are being read; the first call starts the wait.

        Args:
            tracked: The request.
            known_tokens: The number of its tokens that vLLM has itself, without those before the keys of a match.
            now: The time, by the clock.

        Returns:
            Whether it waits.
        """
        if tracked.prefetch is not None and not tracked.prefetch.ready and now < tracked.disk_wait_ends:
            return True
        limits = self.fleet.limits
        if tracked.fleet is None or not limits.timeout:
            return False
        if not tracked.fleet_wait_ends:
            tracked.fleet_wait_ends = now + limits.ask_timeout + limits.timeout
        hit = tracked.fleet.hit
        if hit is not None and hit.tokens - known_tokens < limits.least:
            return False
        return now < tracked.fleet_wait_ends and tracked.fleet.waits(now)

    def begin(self, tracked: RequestState, match: GroupMatch, known_tokens: int, now: float) -> bool:
        """Requests the pages after a match, once for each request.

        Args:
            tracked: The request.
            match: The match of the pages that vLLM lacks.
            known_tokens: The number of its tokens that vLLM has itself.
            now: The time, by the clock.

        Returns:
            Whether the request waits for them.
        """
        if not tracked.said.prefetch:
            return False
        waits = False
        # Pages that no request waits for are found in memory by the next one.
        if tracked.prefetch is None and match.available_tokens > max(match.tokens, known_tokens):
            tracked.prefetch = self._thread.submit(match, max(self._disk_timeout, _DISK_S))
            tracked.disk_wait_ends = now + self._disk_timeout
            waits = bool(self._disk_timeout)
        return (self._ask_fleet(tracked, match, known_tokens) and bool(self.fleet.limits.timeout)) or waits

    def _ask_fleet(self, tracked: RequestState, match: GroupMatch, known_tokens: int) -> bool:
        """Asks the fleet, at most twice: a request that shared a question may lack other pages than that one."""
        if not tracked.asks_fleet_again or not self.fleet.answers:
            return False
        asked = self.fleet.ask(match, known_tokens)
        if asked is None:
            return False
        tracked.asks_fleet_again = tracked.fleet is None and asked.match is not match
        tracked.fleet = asked
        return True
