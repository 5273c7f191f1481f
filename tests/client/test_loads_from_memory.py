"""The rule that loads or computes, for pages in memory: loading them is a copy, for which a request always waits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pagetier.client.load_or_compute import Decision, LoadOrCompute, attended, load_modes
from pagetier.client.tier_speed import LoadTier
from seeded_random import chance

TIMEOUT_S = 1000.0
TOKEN_S, STEP_S = 1e-3, 0.01  # computing
CASES, REQUESTS, FIRST = 200, 60, 10
SEVERAL = 0.05  # of the cases; one in 400 exceeds the limit


def taught(copying: Callable[[int], float], modes: str = "measured") -> LoadOrCompute:
    """Returns a rule that has measured computing and copying at several lengths."""
    rule = LoadOrCompute(load_modes(modes))
    for tokens in (512, 100, 4096, 900, 5000):
        rule.computed(tokens, attended(range(tokens)), STEP_S + TOKEN_S * tokens)
    for tokens in (256, 4096, 1024, 512, 8192):
        rule.copied(tokens, copying(tokens))
    return rule


def decided(rule: LoadOrCompute, tokens: int, now: float = 0.0) -> Decision:
    return rule.decide(LoadTier.MEMORY, range(tokens), now)


def test_pages_in_memory_are_loaded_exactly_as_long_as_that_is_faster() -> None:
    """With 0.5 s and half of what computing takes for each token, 1,000 tokens take as long both ways."""
    rule = taught(lambda tokens: 0.5 + 5e-4 * tokens)
    for _ in range(2):  # the first ones that are left out cost too little for a probe
        assert decided(rule, 700) is Decision.COMPUTE
        assert decided(rule, 1020) in (Decision.LOAD, Decision.TRY), "computing it costs little beside 100,000"
        assert decided(rule, 100_000) is Decision.LOAD
    for change, expected in ((0.9, Decision.LOAD), (1.3, Decision.COMPUTE)):
        assert decided(taught(lambda tokens, change=change: change * TOKEN_S * tokens), 1000) is expected  # type: ignore[misc]


def test_nothing_is_known_of_copies_or_of_an_engine_at_first() -> None:
    rule = LoadOrCompute()
    assert decided(rule, 1) is Decision.LOAD
    rule.copied(1000, 1.0)
    assert decided(rule, 1000) is Decision.LOAD, "it never computed"
    for _ in range(3):
        rule.computed(1000, attended(range(1000)), 0.5)
        rule.computed(0, 0.0, 0.01)
    assert decided(rule, 1000) is Decision.COMPUTE


def test_a_copy_that_was_long_ago_ordered_is_not_judged() -> None:
    """A step that ends late says nothing about the copies in it, of which the workers report their own times."""
    rule = taught(lambda tokens: 1e-5 * tokens)
    assert all(decided(rule, 1000, now) is Decision.LOAD for now in (0.0, 1.0, 1000.0))


def test_a_copy_delays_what_is_read_from_a_lower_tier() -> None:
    """Reading 1,000 tokens takes 0.6 s, computing them 1 s, copying them 0.3 s or 0.5 s."""
    for copying, loads in ((3e-4, True), (5e-4, False)):
        rule = taught(lambda tokens, copying=copying: copying * tokens)  # type: ignore[misc]
        for at, tokens in enumerate((250, 500, 1000)):
            rule.ended(rule.sent(LoadTier.DISK, tokens, TIMEOUT_S, at / 2), 1.0, at / 2 + 6e-4 * tokens)
        assert (rule.decide(LoadTier.DISK, range(1000), 3.0) is Decision.LOAD) is loads
        assert rule.asks(LoadTier.DISK, range(1000), 3.1) is loads, "a probe was just due"


@pytest.mark.parametrize(
    ("modes", "memory", "disk"),
    [
        ("always", Decision.LOAD, Decision.LOAD),
        ("never", Decision.COMPUTE, Decision.NEVER),
        ("memory=always", Decision.LOAD, Decision.PROBE),
        ("memory=never", Decision.NEVER, Decision.NEVER),
        ("memory=never,disk=always", Decision.NEVER, Decision.NEVER),
    ],
)
def test_a_setting_overrides_what_was_measured(modes: str, memory: Decision, disk: Decision) -> None:
    """Without a tier, `never` is about disk and fleet: without memory nothing can be loaded."""
    rule = taught(lambda tokens: 3 * TOKEN_S * tokens, modes)
    assert (decided(rule, 1000), rule.decide(LoadTier.DISK, range(1000), 1.0)) == (memory, disk)


@pytest.mark.parametrize("slower", [1.2, 3.0, 10.0])
def test_probes_of_memory_cost_a_twentieth_of_computing_and_find_the_recovery(slower: float) -> None:
    rule = taught(lambda tokens: slower * TOKEN_S * tokens)
    took = probes = 0.0
    for _ in range(2000):
        loads = decided(rule, 1000) is Decision.LOAD
        probes += loads
        took += slower if loads else 1.0
        if loads:
            rule.copied(1000, slower * TOKEN_S * 1000)
    assert probes >= 2 and took <= 1.051 * 2000
    computed = 0
    for _ in range(5):
        while decided(rule, 1000) is not Decision.LOAD:
            computed += 1
            assert computed <= 50 * slower, "the recovery was not found"
        rule.copied(1000, 0.1)
    assert all(decided(rule, 1000) is Decision.LOAD for _ in range(100))


def test_random_copies_against_the_better_of_both_in_hindsight() -> None:
    """Copies take from a hundredth to eight times what computing takes; noise of 5 % is on each time."""
    random = chance()
    ratios = [_ratio(random) for _ in range(CASES)]
    assert np.mean(ratios) <= 1.05, np.mean(ratios)
    assert np.mean(np.array(ratios) > 1.3) <= SEVERAL, sorted(ratios)[-10:]


def _ratio(random: np.random.Generator) -> float:
    rule, now, took, best = LoadOrCompute(), 0.0, list[float](), list[float]()
    token, step = 10 ** random.uniform(-5, -3), 256e-5 * random.uniform(0, 1)
    rate = token * 10 ** random.uniform(-2, 0.9)
    latency = random.uniform(0, 1) * rate * 1000

    def noise() -> float:
        return float(np.exp(random.normal(0, 0.05)))

    for _ in range(REQUESTS):
        tokens, tail = int(np.exp(random.uniform(np.log(256), np.log(32768)))), int(random.integers(16, 512))
        computing, copying = token * tokens * noise(), (latency + rate * tokens) * noise()
        loads = decided(rule, tokens, now) is Decision.LOAD
        if loads:
            rule.copied(tokens, copying)
        own = step * noise() + token * tail * noise()
        part = range(tokens if loads else 0, tokens + tail)
        rule.computed(len(part), attended(part), own + (0.0 if loads else computing))
        rule.computed(0, 0.0, step * noise())
        took.append(copying if loads else computing)
        best.append(min(copying, computing))
        now += took[-1] + random.uniform(0, 2)
    return sum(took[FIRST:]) / sum(best[FIRST:])
