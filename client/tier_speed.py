"""Learns how fast a tier delivers pages, and when it is read only to find that out."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Final

import msgspec

from pagetier.client.measured_time import MeasuredTime

_READS: Final = 5  # that say how fast a tier is
_PROBE_S: Final = 2.0  # the least time between two probes
_PROBE_READS: Final = 100  # and the reads for each of them
_PROBE_LATEST_S: Final = 4.0  # and the time after which a probe is due, however few requests there are
_NO_ANSWER: Final = 0.8  # of its timeout: a read that failed by then was refused, and says nothing about the speed
_LEAST_PART: Final = 0.1  # of a read that the timeout ended
_COPIES: Final = 16  # that say how fast pages are copied, which changes little
_PROBE_PART: Final = 0.05  # of what computing has taken since the last one, that a probe of memory may cost


class LoadTier(StrEnum):
    """A tier from which pages are loaded. Those of the lower ones come into memory first."""

    MEMORY = "memory"
    DISK = "disk"
    FLEET = "remote"


class SentRead(msgspec.Struct, eq=False):
    """A read of a tier that has not ended.

    Attributes:
        tier: The tier.
        tokens: The tokens that it brings.
        queued: Those of earlier reads that were still to come when it was sent, as far as that is known.
        sent_at: When it was sent, by the clock.
        timeout: The seconds that the tier has for it.
    """

    tier: LoadTier
    tokens: int
    queued: float
    sent_at: float
    timeout: float


class CopySpeed:
    """What copies of pages from memory to the engine take, by those that have ended.

    They are not judged while they run: an engine learns only at the end of a step what has ended long before.
    """

    def __init__(self) -> None:
        self._time = MeasuredTime(2, _COPIES)
        self._computed_s = 0.0  # since the last probe

    def expected(self, tokens: int) -> float:
        """Returns the seconds that a copy of so many tokens takes; 0 before the first one."""
        return self._time.seconds((1.0, tokens)) if self._time.known else 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        """Adds a measurement."""
        self._time.learn((1.0, tokens), seconds)

    def take_probe(self, copying: float, computing: float) -> bool:
        """Counts a prefix that is computed faster, and decides about a probe, for which a request waits.

        Returns:
            Whether it is copied: so seldom that it costs little beside all that is computed.
        """
        self._computed_s += computing
        if copying - computing > _PROBE_PART * self._computed_s:
            return False
        self._computed_s = 0.0
        return True


class TierSpeed:
    """What a tier delivers, by the reads that have ended and those that have not."""

    def __init__(self) -> None:
        self._time = MeasuredTime(2, _READS)
        self._sent: list[SentRead] = []  # in the order in which they were sent
        self._judged_until = -math.inf  # when the latest read was sent that has ended
        self._free_at = -math.inf  # when the latest one ended
        self._read_at = self._probed_at = -math.inf
        self._reads_since = 0

    def _queued(self, now: float) -> float:
        """Returns the tokens that are still to come. Those of the oldest read come evenly in the time that it takes."""
        queued = float(sum(read.tokens for read in self._sent))
        if not queued or not self._time.known:
            return queued
        oldest = next(read for read in self._sent if read.tokens)
        passed, takes = max(0.0, now - self._begun(oldest)), self._time.seconds((1.0, oldest.tokens))
        return queued - oldest.tokens * (passed / takes if passed < takes else 1.0)

    def _begun(self, read: SentRead) -> float:
        """Returns when the tier began with a read, if it is the oldest one."""
        return max(read.sent_at, self._free_at)

    def expected(self, tokens: int, now: float) -> float:
        """Returns the seconds that a read of so many tokens takes; 0 if the tier was never read.

        A read in progress counts for the time that it has taken so far, unless a later one has ended before it.
        """
        learned = self._time.seconds((1.0, tokens + self._queued(now))) if self._time.known else 0.0
        return max(learned, self._late(now))

    def _least(self, tokens: int, now: float) -> float:
        """Returns the least seconds that such a read takes: far less than expected if only shorter ones were read."""
        return max(self._time.equations.least((1.0, tokens + self._queued(now))), self._late(now))

    def _late(self, now: float) -> float:
        return next((now - read.sent_at for read in self._sent if read.sent_at >= self._judged_until), 0.0)

    def part_in_time(self, tokens: int, seconds: float, now: float) -> float:
        """Returns which part of these tokens come within some seconds, at most 1."""
        if not self._time.known:
            return 1.0
        latency = self._time.seconds((1.0, self._queued(now)))
        reading = self._time.seconds((0.0, tokens))
        return min(1.0, max(0.0, seconds - latency) / reading) if reading else float(latency <= seconds)

    def probe_is_due(self, now: float, tokens: int, computing: float) -> bool:
        """Returns whether a read of so many tokens, which are computed in `computing` seconds, measures the tier.

        Other reads say enough, unless they leave open whether such a one is faster than computing.
        """
        is_open = self._least(tokens, now) < computing
        waited = now - (self._probed_at if is_open else self._read_at)
        return waited >= _PROBE_S and (self._reads_since >= _PROBE_READS or waited >= _PROBE_LATEST_S)

    def take_probe(self, now: float, tokens: int, computing: float) -> bool:
        """Counts a prefix for which the tier is too slow, and returns whether it is read as a probe."""
        self._reads_since += 1
        if not self.probe_is_due(now, tokens, computing):
            return False
        self._read_at, self._probed_at, self._reads_since = now, now, 0
        return True

    def send(self, read: SentRead) -> SentRead:
        """Adds a read to those in progress, and returns it."""
        read.queued = float(sum(earlier.tokens for earlier in self._sent))
        self._sent.append(read)
        self._read_at, self._reads_since = max(self._read_at, read.sent_at), 0
        return read

    def end(self, read: SentRead, part: float, now: float) -> None:
        """Learns from a read that has ended, unless it was refused, or all of its pages were awaited already."""
        if read not in self._sent:
            return
        self._sent.remove(read)
        took = now - read.sent_at
        if not read.tokens or (part < 1 and took < _NO_ANSWER * read.timeout):
            return
        self._leave_out(read, now)
        self._judged_until, self._free_at = max(self._judged_until, read.sent_at), max(self._free_at, now)
        self._time.learn((1.0, read.tokens + read.queued), took / max(part, _LEAST_PART))

    def _leave_out(self, read: SentRead, now: float) -> None:
        """Takes what had come of a read that has ended from the queue of each one that was sent by then."""
        begun = self._begun(read)
        for later in self._sent:
            if begun < later.sent_at:
                later.queued -= read.tokens * (later.sent_at - begun) / (max(now, later.sent_at) - begun)
