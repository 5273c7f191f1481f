"""Asks the fleet for pages that no tier of this host has, and reads them while requests wait for their turn.

Nothing here blocks: questions and reads are sent on the thread of PrefetchThread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.daemon_requests import Prefetch
from pagetier.client.engines.prefetch_thread import PrefetchThread, ReadEnd, part_of
from pagetier.client.fleet_lookup import LocatedHit, Location
from pagetier.client.group_match import GroupMatch
from pagetier.client.load_or_compute import Decision, LoadOrCompute
from pagetier.client.prompt_reader import choose_hit
from pagetier.client.tier_speed import LoadTier
from pagetier.shm import clock

_LATE_S: Final = 0.1  # by which a daemon that works is late at most
_LEAST_S: Final = 1.0  # the least timeout of a read, also if no request waits for it
_FORGOTTEN_S: Final = 10.0  # after which an answer that is late does not come any more


class FleetLimits(msgspec.Struct, frozen=True):
    """When the fleet is asked, and how long a request waits for it.

    Attributes:
        timeout: Seconds that a request may wait for pages of the fleet. With 0 no request waits for it at all.
        least: The least number of tokens by which the fleet must make a hit longer.
        ask_timeout: Seconds that a request may wait for the answer to the question, whether the daemon answers or not.
    """

    timeout: float = 2.0
    least: int = 256
    ask_timeout: float = 0.05


class FleetRead:
    """A question to the fleet, and the read that follows it. Requests with the same first missing page share it.

    Attributes:
        first_key: The key of the first page that was asked for.
        match: The match after which pages are missing.
        asked_at: When the question was given to the thread, by the clock.
        hit: What is read; None before the answer, and if nothing is.
        read_at: When the read was sent.
        slower_tokens: The tokens that the fleet has and that are not loaded, because computing them is faster.
        waker: Wakes the requests that wait for it.
    """

    def __init__(self, first_key: bytes, match: GroupMatch, limits: FleetLimits) -> None:
        self.first_key, self.match = first_key, match
        self.asked_at = clock.now()
        self.hit: LocatedHit | None = None
        self.read_at = math.inf
        self.slower_tokens = 0
        self.waker = ReadEnd()
        self._limits = limits
        self._prefetch: Prefetch | None = None
        self._in_time = True
        self._ended = False

    @property
    def ended(self) -> bool:
        """Whether nothing is asked and read any more."""
        return self._ended or (self._prefetch is not None and self._prefetch.ready)

    @property
    def due(self) -> float:
        """Until when a request waits for the answer, or for the pages, by the clock."""
        if self._prefetch is None:
            return self.asked_at + self._limits.ask_timeout
        return self.read_at + self._limits.timeout

    def waits(self, now: float) -> bool:
        """Returns whether a request has to wait."""
        return bool(self._limits.timeout) and self._in_time and not self.ended and now < self.due

    def is_late(self, now: float) -> bool:
        """Returns whether the answer is more than 0.1 s late."""
        return not self.ended and now > max(self.due, self.read_at + _LEAST_S if self.hit else 0.0) + _LATE_S

    def end(self) -> None:
        """Ends the question: nothing is read."""
        self._ended = True
        self.waker.wake()

    def begin_read(self, hit: LocatedHit, prefetch: Prefetch, *, in_time: bool) -> None:
        """Records the read that was sent. No request waits for it if it cannot end in time."""
        self.hit, self.read_at, self._in_time, self._prefetch = hit, clock.now(), in_time, prefetch
        if not in_time:
            self.waker.wake()


class FleetReads:
    """The questions and reads of one scheduler. One thread calls ask(); it does not block.

    Args:
        client: The client.
        thread: Sends questions and reads.
        rule: Says what is read.

    Attributes:
        limits: When the fleet is asked, and how long a request waits.
    """

    def __init__(self, client: Client, thread: PrefetchThread, rule: LoadOrCompute) -> None:
        self._client, self._thread, self._rule = client, thread, rule
        self.limits = FleetLimits()
        self._open: dict[bytes, FleetRead] = {}

    @property
    def answers(self) -> bool:
        """Whether there is a fleet that answers. It is a cheap check."""
        session = self._client.session
        return session is not None and session.asks_fleet

    def ask(self, match: GroupMatch, known_tokens: int) -> FleetRead | None:
        """Asks for the pages after a match, unless they are too few, computing is faster or the daemon does not answer.

        Args:
            match: The match. It may be released.
            known_tokens: The number of tokens that the engine has itself.

        Returns:
            The question, maybe that of another request with the same first missing page; None if none is asked.
        """
        needed, now = range(max(match.available_tokens, known_tokens), match.asked), clock.now()
        if len(needed) < self.limits.least or not self._rule.asks(LoadTier.FLEET, needed, now):
            return None
        key = match.first_key_after(match.available_tokens)
        for ended in [one for one in self._open.values() if one.ended or one.is_late(now - _FORGOTTEN_S)]:
            ended.end()
            del self._open[ended.first_key]
        if any(one.is_late(now) for one in self._open.values()):
            return None
        read = self._open.get(key)
        if read is None:
            read = self._open[key] = FleetRead(key, match, self.limits)
            self._on_thread(read, lambda: self._send(read))
        return read

    def _on_thread(self, read: FleetRead, call: Callable[[], None]) -> None:
        """Runs a call on the thread. The read ends if that fails, so that no request waits for it."""

        def run() -> None:
            try:
                call()
            except BaseException:
                read.end()
                raise

        if not self._thread.run(run):
            read.end()

    def _send(self, read: FleetRead) -> None:
        location = self._client.locate(read.match)
        location.call_when_ready(lambda: self._on_thread(read, lambda: self._read(read, location)))

    def _read(self, read: FleetRead, location: Location) -> None:
        if read.hit is not None:
            return  # called twice
        hit, decision = choose_hit(self._rule, location, self.limits.least, self.limits.timeout or _LEAST_S)
        begins = location.match.available_tokens
        if hit is not None and decision in (Decision.COMPUTE, Decision.PROBE):
            read.slower_tokens = hit.tokens - begins
        if hit is None or decision not in (Decision.LOAD, Decision.PROBE):
            read.end()
            return
        timeout = max(self.limits.timeout, _LEAST_S)
        sent = self._rule.sent(LoadTier.FLEET, hit.tokens - begins, timeout, clock.now())
        prefetch = self._client.prefetch(hit, timeout)
        read.begin_read(hit, prefetch, in_time=decision is Decision.LOAD)

        def ended() -> None:
            self._rule.ended(sent, part_of(prefetch), clock.now())
            read.waker.wake()

        prefetch.call_when_ready(ended)
