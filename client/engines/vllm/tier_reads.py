"""Reads pages of requests from disk and from the fleet while they wait for their turn, and says how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.engines.fleet_reads import FleetLimits, FleetReads
from pagetier.client.engines.prefetch_thread import PendingPrefetch, PrefetchThread, ReadEnd
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.group_match import GroupMatch
from pagetier.client.load_or_compute import Decision, LoadMode, LoadOrCompute
from pagetier.client.tier_speed import LowerTier
from pagetier.shm import clock

_DISK_S: Final = 1.0  # the least timeout of a prefetch, whether the request waits for it or not


class ReadLimits(msgspec.Struct, frozen=True):
    """Which pages are read, and how long a request waits for them.

    Attributes:
        disk_timeout: Seconds that a request may wait for pages on disk.
        fleet: When the fleet is asked, and how long a request waits for it.
        load: Where loading does not depend on what was measured; see load_modes().
    """

    disk_timeout: float
    fleet: FleetLimits = FleetLimits()
    load: Mapping[LowerTier, LoadMode] = {}


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
        self._client, self._thread, self._disk_timeout = client, thread, limits.disk_timeout
        self.rule = LoadOrCompute(limits.load)
        self.fleet = FleetReads(client, thread, self.rule)
        self.fleet.limits = limits.fleet
        self._awaited: dict[bytes, int] = {}  # by the first key that is read, the end of what is read from disk

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
        decision = self._decide_disk(match, match.tokens, clock.now()) if reads_disk else Decision.LOAD
        tracked.is_try = decision is Decision.TRY
        if reads_disk and decision in (Decision.LOAD, Decision.PROBE):
            tracked.early = self._read_disk(match)
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
            longest = min(longest, self.rule.longest_wait(LowerTier.FLEET, needed))
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
            decision = Decision.TRY if tracked.is_try else self._decide_disk(match, begins, now)
            if decision is Decision.LOAD:
                waits = self._wait_for_disk(tracked, match, range(begins, match.available_tokens), now)
            else:
                self._leave_out(tracked, match, decision, match.available_tokens - begins)
                return False  # what the fleet has comes after these pages
        return (self._ask_fleet(tracked, match, known_tokens) and bool(self.fleet.limits.timeout)) or waits

    def _wait_for_disk(self, tracked: RequestState, match: GroupMatch, needed: range, now: float) -> bool:
        """Lets a request wait for the read that it has begun early, or for a new one. Returns whether it waits."""
        early = tracked.early
        tracked.prefetch = early if early is not None and not early.ready else self._read_disk(match)
        tracked.disk_wait_ends = now + min(self._disk_timeout, self.rule.longest_wait(LowerTier.DISK, needed))
        return bool(self._disk_timeout)

    def _leave_out(self, tracked: RequestState, match: GroupMatch, decision: Decision, tokens: int) -> None:
        """Lets a request compute pages on disk. Reads them nevertheless if that is a probe."""
        if decision in (Decision.COMPUTE, Decision.PROBE):
            tracked.slower_on_disk = tokens
        if decision is Decision.PROBE:
            self._read_disk(match)

    def _decide_disk(self, match: GroupMatch, begins: int, now: float) -> Decision:
        """Decides what becomes of the pages of a match on disk."""
        needed = range(begins, match.available_tokens)
        awaited = min(self._awaited.get(match.first_key_after(match.tokens), 0), needed.stop) - needed.start
        return self.rule.decide(LowerTier.DISK, needed, now, max(0, awaited))

    def _read_disk(self, match: GroupMatch) -> PendingPrefetch:
        """Requests the pages of a match on disk. Those that another request awaits are read once."""
        key, ends, timeout = (
            match.first_key_after(match.tokens),
            match.available_tokens,
            max(self._disk_timeout, _DISK_S),
        )
        begins = max(match.tokens, min(self._awaited.get(key, 0), ends))
        sent = self.rule.sent(LowerTier.DISK, ends - begins, timeout, clock.now())
        self._awaited[key] = max(ends, begins)

        def ended(part: float) -> None:
            self._awaited.pop(key, None)
            self.rule.ended(sent, part, clock.now())

        return self._thread.submit(match, timeout, ended)

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
