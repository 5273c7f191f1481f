"""Decides whether a prefix is loaded from a tier or computed: whichever is faster by what the engine has measured.

The engine reports how long its steps took (`computed`), and how long each read of a tier took (`sent`, `ended`). Both
times are linear in a few quantities whose factors are learned, so that a decision holds for other lengths too:

- *Computing* the tokens from `begins` to `ends` takes `a * tokens + b * attended`, where each token attends to all
  before it. Each step also takes a time of its own, which does not count: a request that loads needs a step too.
  Steps that compute no prompt say how long it is, since short steps of one length do not.
- *Reading* them into memory takes `latency + (tokens + queued) / rate`, where `queued` are the tokens that this engine
  awaits from the tier already, without what has come of the oldest read. Reads of other engines show in the measured
  latency and rate.
- *Copying* them from memory to the engine takes `latency + tokens / rate`. So loading from memory is copying, and
  loading from another tier is both.

Nobody knows of a tier that is not read whether it is still slow, nor of one from which only short prefixes are read
how long other ones take. So one read in a while is a probe: no request waits for it, and if it is fast, loading begins
again. A probe of memory is a load for which its request waits, so that only a small part of the time is spent on them.
And an engine that loads computes only the ends of prompts. So one prefix in a while is computed although that
seems slower, until steps of some length were measured, where the measurements allow that it is faster. Its first step
is no such measurement, since it may do what an engine does once. Since an engine may become faster, one is computed
later, too, after so many loads that it costs little beside them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from pagetier.client.arguments import seconds_of
from pagetier.client.measured_time import TimeByKind
from pagetier.client.tier_speed import CopySpeed, LoadTier, SentRead, TierSpeed

_STEPS: Final = 16  # of each kind that say how fast the engine is, which changes little
_LONG: Final = 256  # tokens of a step, from which on the time of longer ones follows
_PART: Final = 4  # of a prefix is as good, if that is shorter
_DEAREST: Final = 4.0  # times what loading takes, for a prefix that is computed to measure computing
_DEARER: Final = 2.0  # times what loading has taken since the last one, that a dearer one may cost
_FIRST: Final = -1  # the kind of an engine's first step with a prompt: it may take far longer than any later one
_TRY_S: Final = 2.0  # the least time between two tries
_TRY_PART: Final = 0.005  # of what loading has taken since a long step, that one may cost after the first ones
_PATIENCE: Final = 1.25  # times what computing takes, for a read that should have ended by then


class LoadMode(StrEnum):
    """When prefixes are loaded from a tier."""

    ALWAYS = "always"
    MEASURED = "measured"
    NEVER = "never"


def load_modes(text: str) -> dict[LoadTier, LoadMode]:
    """Returns the setting `load` of an engine: a mode, or one for each tier as in `disk=always,remote=never`.

    A tier that is not named is loaded from as measured. So is memory if the mode is `never`, without a tier: without
    memory nothing can be loaded.

    Raises:
        ValueError: A tier or a mode is unknown.
    """
    try:
        if "=" not in text:
            lower = (LoadTier.DISK, LoadTier.FLEET) if text == LoadMode.NEVER else tuple(LoadTier)
            return dict.fromkeys(lower, LoadMode(text))
        named = dict(part.strip().split("=", 1) for part in text.split(","))
        return {LoadTier(tier): LoadMode(mode) for tier, mode in named.items()}
    except ValueError:
        modes, tiers = ", ".join(LoadMode), ", ".join(LoadTier)
        raise ValueError(
            f'load must be one of {modes}, or TIER=MODE for {tiers}, separated by commas, not "{text}"'
        ) from None


class Decision(Enum):
    """What becomes of a prefix that a tier has."""

    LOAD = 1
    """The request waits for it."""
    COMPUTE = 2
    """The request computes it, because loading is slower."""
    PROBE = 3
    """The request computes it, and it is read without a request that waits, to measure the tier."""
    NEVER = 4
    """The request computes it, because a setting says so."""
    TRY = 5
    """The request computes it, to measure what computing takes."""


class LoadOrCompute:
    """The rule of one engine, for all of its requests. Thread-safe; no method blocks.

    Times are passed in, by the clock, so that the rule asks no clock.

    Args:
        modes: When prefixes are loaded, see load_modes().
    """

    def __init__(self, modes: Mapping[LoadTier, LoadMode] = MappingProxyType({})) -> None:
        self._modes = {tier: modes.get(tier, LoadMode.MEASURED) for tier in LoadTier}
        if self._modes[LoadTier.MEMORY] is LoadMode.NEVER:  # all pages come from memory in the end
            self._modes = dict.fromkeys(LoadTier, LoadMode.NEVER)
        self._computing = TimeByKind(3, _STEPS)
        self._has_computed = False
        self._tried_at, self._loaded_s = -math.inf, 0.0
        self._unmeasured_s = 0.0  # that loading has taken since the last long step
        self._copying = CopySpeed()
        self._tiers = {tier: TierSpeed() for tier in (LoadTier.DISK, LoadTier.FLEET)}
        self._lock = threading.Lock()

    def computed(self, tokens: int, attended: float, seconds: float) -> None:
        """Records a step of the engine.

        Args:
            tokens: The tokens of prompts that it has computed. A step without them, which computed only answers, says
                what the others take of their own; one after each step with them is enough.
            attended: The sum over these tokens of the tokens before each of them; see attended().
            seconds: The time that the step took.
        """
        with self._lock:
            kind = tokens.bit_length() if self._has_computed or not tokens else _FIRST
            self._has_computed = self._has_computed or tokens > 0
            self._computing.learn(kind, (1.0, tokens, attended), seconds)
            if tokens >= _LONG:
                self._unmeasured_s = 0.0

    def decide(self, tier: LoadTier, needed: range, now: float, awaited: int = 0) -> Decision:
        """Decides what becomes of a part of a prompt that a tier has. A probe of memory is a load.

        Args:
            tier: The tier.
            needed: The tokens.
            now: The time, by the clock.
            awaited: The number of them that the engine awaits from the tier already, for another request.

        Returns:
            The decision. The caller follows it, since a probe or a try is due seldom.
        """
        if (mode := self._modes[tier]) is not LoadMode.MEASURED:
            return Decision.LOAD if mode is LoadMode.ALWAYS else Decision.NEVER
        with self._lock:
            copying, computing = self._copying.expected(len(needed)), self._saved(needed)
            loading = copying + (self._tiers[tier].expected(len(needed) - awaited, now) if tier in self._tiers else 0.0)
            if loading <= computing:
                if not awaited and self._take_try(needed, computing, loading, now):
                    return Decision.TRY
                self._loaded_s += loading
                self._unmeasured_s += loading
                return Decision.LOAD
            if tier is LoadTier.MEMORY:
                return Decision.LOAD if self._copying.take_probe(copying, computing) else Decision.COMPUTE
            probes = self._tiers[tier].take_probe(now, len(needed) - awaited, computing - copying)
            return Decision.PROBE if probes else Decision.COMPUTE

    def never_loads(self, tier: LoadTier) -> bool:
        """Returns whether nothing is loaded from a tier because a setting says so."""
        return self._modes[tier] is LoadMode.NEVER

    def copied(self, tokens: int, seconds: float) -> None:
        """Records how long it took to copy tokens from memory to the engine."""
        with self._lock:
            self._copying.learn(tokens, seconds)

    def asks(self, tier: LoadTier, needed: range, now: float) -> bool:
        """Returns whether a tier is asked for these tokens: if it had them, it would be read, maybe as a probe."""
        if (mode := self._modes[tier]) is not LoadMode.MEASURED:
            return mode is LoadMode.ALWAYS
        with self._lock:
            speed, tokens = self._tiers[tier], len(needed)
            computing = self._saved(needed) - self._copying.expected(tokens)
            return speed.expected(tokens, now) <= computing or speed.probe_is_due(now, tokens, computing)

    def longest_wait(self, tier: LoadTier, needed: range) -> float:
        """Returns for how many seconds a request waits for these tokens: a little longer than computing takes.

        So a request for which a tier does not answer takes at most 2.25 times as long as computing alone, and a read
        that takes about as long as computing is not given up shortly before it ends.
        """
        if self._modes[tier] is LoadMode.ALWAYS:
            return math.inf
        with self._lock:
            return _PATIENCE * self._saved(needed)

    def probe(self, tier: LoadTier, now: float) -> Decision:
        """Decides what becomes of tokens that cannot come in time; see decide()."""
        with self._lock:
            return Decision.PROBE if self._tiers[tier].take_probe(now, 0, 0.0) else Decision.COMPUTE

    def part_in_time(self, tier: LoadTier, tokens: int, seconds: float, now: float) -> float:
        """Returns which part of these tokens a tier brings within some seconds, at most 1."""
        with self._lock:
            return self._tiers[tier].part_in_time(tokens, seconds, now)

    def sent(self, tier: LoadTier, tokens: int, timeout: float, now: float) -> SentRead:
        """Returns the record of a read that was sent at `now`, for ended().

        Args:
            tier: The tier.
            tokens: The tokens that it brings.
            timeout: The seconds that the tier has for it.
            now: When it was sent, by the clock.

        Returns:
            The record.
        """
        with self._lock:
            return self._tiers[tier].send(SentRead(tier, tokens, 0, now, timeout))

    def ended(self, read: SentRead, part: float, now: float) -> None:
        """Records that a read has ended at `now`. May be called again for the same read, without effect.

        Args:
            read: The read.
            part: The part of its pages that came, from the first on; at most 1.
            now: When it ended, by the clock.
        """
        with self._lock:
            self._tiers[read.tier].end(read, part, now)

    def _take_try(self, needed: range, computing: float, loading: float, now: float) -> bool:
        """Returns whether a prefix is computed because only far shorter steps, or old ones, say what that takes."""
        if now < self._tried_at + _TRY_S:
            return False
        if computing <= _DEAREST * loading:
            measured = self._computing.weight(min(_LONG, len(needed) // _PART).bit_length()) >= 1
            tries = not measured or computing - loading <= _TRY_PART * self._unmeasured_s
        else:
            affordable = computing - loading <= _DEARER * self._loaded_s
            tries = affordable and self._computing.least(_quantities(needed)) < loading
        if tries:
            self._tried_at, self._loaded_s = now, 0.0
        return tries

    def _saved(self, needed: range) -> float:
        """Returns the seconds that computing these tokens takes; infinite before any were computed."""
        return self._computing.seconds(_quantities(needed))


class ProcessRule:
    """The rule of an engine in each process that uses it. Thread-safe.

    A forked child begins without measurements: its parent's rule may be locked by a thread that the child lacks.
    """

    def __init__(self) -> None:
        self._rules: dict[int, LoadOrCompute] = {}

    @property
    def rule(self) -> LoadOrCompute:
        """The rule of this process."""
        pid = os.getpid()
        return self._rules.get(pid) or self._rules.setdefault(pid, LoadOrCompute())

    def computed(self, seconds: float, prompts: Sequence[range]) -> None:
        """Records that a step has computed these tokens of prompts in so many seconds.

        Raises:
            TypeError: `seconds` is no real number, or a prompt's tokens are no range.
        """
        seconds = seconds_of("the time of computed()", seconds)
        for tokens in prompts:
            if not isinstance(tokens, range):
                raise TypeError(f"computed() takes ranges of a prompt's tokens, as range(0, 512), not {tokens!r:.40}")
        self.rule.computed(sum(map(len, prompts)), math.fsum(map(attended, prompts)), seconds)


def attended(tokens: range) -> float:
    """Returns the sum over these tokens of the number of tokens before each of them."""
    return len(tokens) * (tokens.start + tokens.stop - 1) / 2


def _quantities(tokens: range) -> tuple[float, float, float]:
    """Returns what the time to compute these tokens depends on, without that of a step."""
    return 0.0, len(tokens), attended(tokens)
