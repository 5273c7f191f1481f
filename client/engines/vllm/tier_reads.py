"""Reads pages of requests from disk and from the fleet while they wait for their turn, and says how long they wait."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.disk_reads import DiskReads
from pagetier.client.engines.fleet_reads import FleetLimits, FleetReads
from pagetier.client.engines.prefetch_thread import PrefetchThread, ReadEnd
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.group_match import GroupMatch
from pagetier.client.load_or_compute import Decision, LoadMode, LoadOrCompute
from pagetier.client.tier_speed import LoadTier
from pagetier.shm import clock


class ReadLimits(msgspec.Struct, frozen=True):
    """Which pages are read, and how long a request waits for them.

    Attributes:
        disk_timeout: Seconds that a request may wait for pages on disk.
        fleet: When the fleet is asked, and how long a request waits for it.
        load: Where loading does not depend on what was measured; see load_modes().
    """

    disk_timeout: float
    fleet: FleetLimits = FleetLimits()
    load: Mapping[LoadTier, LoadMode] = {}


class TierReads:
    """The reads of all requests. Called by the one thread of vLLM's scheduler; no method blocks.

    Args:
        client: This process's client.
        thread: Sends the requests to the daemon.
        limits: Which pages are read, and how long a request waits for them.

    Attributes:
        fleet: Asks the fleet and reads from it.
        rule: Says whether prefixes are loaded or computed.
    """

    def __init__(self, client: Client, thread: PrefetchThread, limits: ReadLimits) -> None:
        self._client, self._disk_timeout = client, limits.disk_timeout
        self.rule = LoadOrCompute(limits.load)
        self._disk = DiskReads(thread, self.rule)
        self.fleet = FleetReads(client, thread, self.rule)
        self.fleet.limits = limits.fleet
        self._copied: dict[str, float] = {}  # the seconds of the slowest worker so far, by the request

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
        decision = self._disk.decide(match, match.tokens, clock.now()) if reads_disk else Decision.LOAD
        tracked.is_try = decision is Decision.TRY
        if reads_disk and decision in (Decision.LOAD, Decision.PROBE):
            tracked.early = self._disk.read(match, self._disk_timeout)
        asks = fleet and decision is Decision.LOAD and self._ask_fleet(tracked, match, 0)
        return asks or tracked.early is not None

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
            return _sleep(tracked, tracked.prefetch.waker, tracked.disk_wait_ends)
        limits = self.fleet.limits
        if tracked.fleet is None or not limits.timeout:
            return False
        if not tracked.fleet_wait_begins:
            tracked.fleet_wait_begins = now
        hit, longest = tracked.fleet.hit, limits.timeout
        if hit is not None:
            needed = range(max(known_tokens, tracked.fleet.match.available_tokens), hit.tokens)
            if hit.tokens - known_tokens < limits.least:
                return False
            longest = min(longest, self.rule.longest_wait(LoadTier.FLEET, needed))
        ends = tracked.fleet_wait_begins + limits.ask_timeout + longest
        if now >= ends or not tracked.fleet.waits(now):
            return False
        return _sleep(tracked, tracked.fleet.waker, min(ends, tracked.fleet.due))

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
        waits, begins = False, max(match.tokens, known_tokens)
        # Pages that no request waits for are found in memory by the next one.
        if tracked.prefetch is None and match.available_tokens > begins:
            decision = Decision.TRY if tracked.is_try else self._disk.decide(match, begins, now)
            if decision is Decision.LOAD:
                waits = self._wait_for_disk(tracked, match, range(begins, match.available_tokens), now)
            else:
                self._leave_out(tracked, match, decision, match.available_tokens - begins)
                return False  # what the fleet has comes after these pages
        return (self._ask_fleet(tracked, match, known_tokens) and bool(self.fleet.limits.timeout)) or waits

    def loads_from_memory(self, tracked: RequestState, needed: range, now: float) -> bool:
        """Decides whether a request loads tokens that are in memory. What it has waited for is loaded."""
        waited = tracked.prefetch is not None or (tracked.fleet is not None and tracked.fleet.hit is not None)
        decision = self.rule.decide(LoadTier.MEMORY, needed, now) if needed and not waited else Decision.LOAD
        if decision is Decision.COMPUTE:
            tracked.slower[LoadTier.MEMORY] = len(needed)
        elif tracked.slower:
            tracked.slower.pop(LoadTier.MEMORY, None)
        return decision is Decision.LOAD

    def report(self, copied: Mapping[str, float]) -> None:
        """Records how long a worker has copied for loads that have ended there. Other workers may report later."""
        for request, seconds in copied.items():
            self._copied[request] = max(seconds, self._copied.get(request, 0.0))

    def loaded(self, tracked: RequestState) -> None:
        """Learns how long the copies of a load took which has ended on all workers, unless it has failed."""
        seconds = self._copied.pop(tracked.request.request_id, 0.0)
        if seconds and tracked.taken.tokens:
            self.rule.copied(tracked.taken.tokens, seconds)

    def _wait_for_disk(self, tracked: RequestState, match: GroupMatch, needed: range, now: float) -> bool:
        """Lets a request wait for the read that it has begun early, or for a new one. Returns whether it waits."""
        early = tracked.early
        reads = early is not None and not early.ready
        tracked.prefetch = early if reads else self._disk.read(match, self._disk_timeout)
        tracked.disk_wait_ends = now + min(self._disk_timeout, self.rule.longest_wait(LoadTier.DISK, needed))
        return bool(self._disk_timeout)

    def _leave_out(self, tracked: RequestState, match: GroupMatch, decision: Decision, tokens: int) -> None:
        """Lets a request compute pages on disk. Reads them nevertheless if that is a probe."""
        if decision in (Decision.COMPUTE, Decision.PROBE):
            tracked.slower[LoadTier.DISK] = tokens
        if decision is Decision.PROBE:
            self._disk.read(match, self._disk_timeout)

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


def _sleep(tracked: RequestState, waker: ReadEnd, until: float) -> bool:
    """Lets a request wait until a read ends or its time is over, without a look at it in each step. Returns True."""
    tracked.wakes_at = until
    waker.add(tracked.wake)
    return True
