"""Reads what memory lacks of a prompt from disk and from the fleet, as far as that is faster than computing it.

All that load a prompt do the same: match, ask the fleet, read from disk and fleet, wait, and match again, since a read
pins nothing. PromptReader has the steps in the middle for engines that wait, and those that do not wait for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pagetier.client.attachment import AttachedClient
from pagetier.client.daemon_requests import RESPONSE_S, prefetch_request
from pagetier.client.destinations import Destination
from pagetier.client.fleet_lookup import LocatedHit, Location, request_location
from pagetier.client.group_match import GroupMatch
from pagetier.client.keys import Keys
from pagetier.client.load_or_compute import Decision, LoadOrCompute
from pagetier.client.match import Match, rematched
from pagetier.client.pending_request import PendingRequest
from pagetier.client.tier_speed import LoadTier, SentRead
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGE_KEYS

_READ: Final = (Decision.LOAD, Decision.PROBE)
_SLOWER: Final = (Decision.COMPUTE, Decision.PROBE)

CountSlower = Callable[[int, int], None]


def _count_nothing(on_disk: int, remote: int) -> None:
    """Counts nothing, for engines that count all that a request has found."""


class TierRead:
    """Pages of one prompt that are read from disk and fleet, not sent yet. Made by PromptReader.plan().

    An exception of a signal handler may come between any two steps: the caller then calls leave().

    Attributes:
        tokens: The length of the prefix once all of these pages are in memory.
    """

    def __init__(
        self, tokens: int, pending: PendingRequest[int], begun: Callable[[], None], deadline: Deadline, longest: float
    ) -> None:
        self.tokens = tokens
        self._pending, self._begun, self._deadline, self._longest = pending, begun, deadline, longest

    def send(self) -> None:
        """Sends the request, and does not wait for the pages."""
        self._begun()
        self._pending.send(self._deadline.left)

    def wait(self) -> None:
        """Waits for the pages until the deadline, and not much longer than computing them takes."""
        self._pending.wait(min(self._deadline.left, self._longest))

    def leave(self) -> None:
        """Ends the wait. The pages may still come."""
        self._pending.leave()

    def start(self) -> None:
        """Sends the request without waiting for the pages, for a later match."""
        try:
            self.send()
        finally:
            self.leave()

    def finish(self) -> None:
        """Sends the request and waits for the pages."""
        try:
            self.send()
            self.wait()
        finally:
            self.leave()


class PromptReader:
    """Reads pages that a match has not pinned, for engines that do more than Client.load() does. Thread-safe.

    Args:
        client: The client.
        rule: Says what is read and what is computed, and learns how long reads take; by default everything is read.

    Attributes:
        rule: The rule.
    """

    def __init__(self, client: AttachedClient, rule: LoadOrCompute | None = None) -> None:
        self.rule = LoadOrCompute() if rule is None else rule
        self._client = client

    def read(
        self, found: GroupMatch, present: int, deadline: Deadline, count_slower: CountSlower = _count_nothing
    ) -> bool:
        """Reads what is worth it, and waits for it; see plan().

        Args:
            found: The first match.
            present: See plan().
            deadline: See plan().
            count_slower: See plan().

        Returns:
            Whether a second match may find more.
        """
        read = self.plan(found, present, deadline, count_slower=count_slower)
        if read is not None:
            read.finish()
        return read is not None

    def plan(
        self,
        found: GroupMatch,
        present: int,
        deadline: Deadline,
        least: int = 1,
        ask_timeout: float = math.inf,
        count_slower: CountSlower = _count_nothing,
    ) -> TierRead | None:
        """Returns a read of what disk and fleet have after a match, as far as loading is faster than computing.

        Waits for an attachment in progress and for the answer of the fleet. Pages that are slower to load may be read
        nevertheless, without anybody who waits, to measure their tier.

        Args:
            found: A match; it is pinned until the read was sent.
            present: The tokens that the engine has itself.
            deadline: The end of all waiting. The fleet is not asked without time left.
            least: The least number of tokens by which the fleet must make the prefix longer.
            ask_timeout: Seconds to wait for the answer of the fleet.
            count_slower: Called with the tokens on disk, and those in the fleet, that are computed because loading them
                is slower.

        Returns:
            The read; None if nothing is worth it.
        """
        on_disk, attachment = range(max(present, found.tokens), found.available_tokens), self._client.attachment
        session = attachment.session
        if session is None or not (on_disk or (session.asks_fleet and deadline.left)):
            return None
        attachment.wait_linked(deadline.left)
        disk = self.rule.decide(LoadTier.DISK, on_disk, clock.now()) if on_disk else Decision.LOAD
        if disk is not Decision.LOAD:  # what the fleet has comes after these pages
            if disk in _SLOWER:
                count_slower(len(on_disk), 0)
            if disk is Decision.PROBE:
                self._read(found, None, on_disk, deadline).start()
            return None
        needed = range(max(present, found.available_tokens), found.asked)
        location = self._ask(found, needed, deadline, min(deadline.left, ask_timeout)) if len(needed) >= least else None
        hit, fleet = (
            choose_hit(self.rule, location, least, deadline.left) if location is not None else (None, Decision.COMPUTE)
        )
        if hit is not None and fleet in _SLOWER:
            count_slower(0, hit.tokens - needed.start)
        if hit is not None and fleet in _READ:
            read = self._read(found, hit, range(needed.start, hit.tokens), deadline)
            if fleet is Decision.LOAD:
                return read
            read.start()
        return self._read(found, None, on_disk, deadline) if on_disk else None

    def _ask(self, found: GroupMatch, needed: range, deadline: Deadline, timeout: float) -> Location | None:
        """Returns what the fleet has of the tokens after a match; None if it has none, or is not worth asking."""
        if not timeout or not self.rule.asks(LoadTier.FLEET, needed, clock.now()):
            return None
        location = request_location(self._client.attachment, found, deadline.left)
        longest = self.rule.longest_wait(LoadTier.FLEET, needed)
        return location if location.wait(min(timeout, longest)) else None

    def _read(self, found: GroupMatch, hit: LocatedHit | None, needed: range, deadline: Deadline) -> TierRead:
        """Returns a read of the pages that memory lacks.

        Args:
            found: The match.
            hit: The hit, with pages of the fleet; None for the one that memory and disk allow.
            needed: The tokens that the engine would compute otherwise.
            deadline: The end of the wait.
        """
        tier, begins = (LoadTier.FLEET, found.available_tokens) if hit else (LoadTier.DISK, found.tokens)
        tokens, keys = (hit.tokens, hit.keys) if hit else (found.available_tokens, found.missing())
        # The disk gets a little less time than the caller has, so that a response that does not come in time is the
        # daemon's fault and not the disk's.
        left = deadline.left
        timeout = left - min(RESPONSE_S, left / 8)
        pending = prefetch_request(self._client.attachment, keys, timeout, hit.fleet if hit else None)
        sent = SentRead(tier, tokens - begins, 0, 0.0, timeout)
        begun = _measured(self.rule, pending, sent, PAGE_KEYS.count(keys))
        return TierRead(tokens, pending, begun, deadline, self.rule.longest_wait(tier, needed))


def copied_while_read(match: Match, destination: Destination, read: TierRead, keys: Keys) -> int:
    """Copies the pinned pages of a match while those after them are read, and then those.

    Args:
        match: The match.
        destination: Where the pages go.
        read: A read of pages after the pinned ones, which is not sent yet.
        keys: The keys up to the last page that is read.

    Returns:
        The number of pages that were copied.
    """
    pinned = len(match) - destination.start_page
    try:
        # 1. The daemon is asked first, so that disk and fleet work while pages in memory are copied.
        read.send()
        # 2. Pinned pages are copied. A page that cannot be copied ends the load: what follows it has no use.
        copied = destination.copy(match, 0)
        if copied >= pinned:
            point("client.waiting")
            read.wait()
    finally:
        read.leave()
    if copied < pinned:
        return copied
    # 3. A read pins nothing, so pages may have been evicted again: what a second match pins is copied.
    point("client.fetched")
    with rematched(match, keys) as longer:
        copied += destination.copy(longer, copied)
    match.count_loaded(destination.start_page + copied)
    return copied


def choose_hit(
    rule: LoadOrCompute, location: Location, least: int, timeout: float
) -> tuple[LocatedHit | None, Decision]:
    """Returns the longest hit that the fleet can bring in time, and what becomes of it. Never waits.

    Args:
        rule: The rule.
        location: The answer of the fleet.
        least: The least number of tokens by which the fleet must make the prefix longer.
        timeout: Seconds that the fleet has.

    Returns:
        The hit, None if there is none; and the decision. A hit that cannot come in time is not loaded.
    """
    begins = location.match.available_tokens
    hit = _long_enough(location.longest_hit(), begins + least)
    if hit is None:
        return None, Decision.COMPUTE
    part = rule.part_in_time(LoadTier.FLEET, hit.tokens - begins, timeout, clock.now())
    in_time = hit if part == 1 else _long_enough(location.longest_hit(part * hit.fleet_bytes), begins + least)
    if in_time is None:
        return hit, rule.probe(LoadTier.FLEET, clock.now())
    return in_time, rule.decide(LoadTier.FLEET, range(begins, in_time.tokens), clock.now())


def _measured(rule: LoadOrCompute, pending: PendingRequest[int], read: SentRead, pages: int) -> Callable[[], None]:
    """Returns what to call when a read is sent, so that the rule learns how long it takes."""

    def begun() -> None:
        sent = rule.sent(read.tier, read.tokens, read.timeout, clock.now())
        pending.call = lambda: rule.ended(sent, pending.wait(0.0) / pages, clock.now())

    return begun


def _long_enough(hit: LocatedHit | None, tokens: int) -> LocatedHit | None:
    return hit if hit is not None and hit.tokens >= tokens else None
