"""The rule that loads or computes: exactly at each crossing, and in random worlds against the better of both."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import msgspec
import numpy as np
import pytest

from pagetier.client.load_or_compute import Decision, LoadOrCompute, ProcessRule, attended, load_modes
from pagetier.client.tier_speed import LoadTier, SentRead
from seeded_random import chance

TIMEOUT_S = 1000.0
NOW = 10.0  # after all reads of taught()


class World(msgspec.Struct):
    """What computing and loading really take, in seconds.

    Attributes:
        token: A token without those before it.
        attended: And what each pair of a token and one before it adds.
        step: A step of the engine.
        latency: A read of no tokens.
        read: A token of a read.
    """

    token: float = 1e-3
    attended: float = 0.0
    step: float = 0.01
    latency: float = 0.5
    read: float = 5e-4

    def computing(self, begins: int, ends: int) -> float:
        return self.token * (ends - begins) + self.attended * attended(range(begins, ends))

    def reading(self, tokens: int) -> float:
        return self.latency + self.read * tokens


def taught(world: World, modes: str = "measured") -> LoadOrCompute:
    """Returns a rule that has measured the world at three lengths of each."""
    rule = LoadOrCompute(load_modes(modes))
    for begins, ends in ((0, 512), (2048, 2560), (512, 4096), (8192, 9000), (0, 5000)):
        seconds = world.step + world.computing(begins, ends)
        rule.computed(ends - begins, attended(range(begins, ends)), seconds)
    for at, tokens in enumerate((256, 4096, 1024, 512, 8192)):
        read_once(rule, world, tokens, 100.0 * (at - 4))
    return rule


def read_once(rule: LoadOrCompute, world: World, tokens: int, now: float) -> None:
    read = rule.sent(LoadTier.DISK, tokens, TIMEOUT_S, now)
    rule.ended(read, 1.0, now + world.reading(tokens))


def decided(rule: LoadOrCompute, tokens: int, begins: int = 0) -> Decision:
    """Returns the decision about a prefix. One that is read to measure the tier counts as computed, which it is."""
    decision = rule.decide(LoadTier.DISK, range(begins, begins + tokens), 0.5)
    return Decision.COMPUTE if decision is Decision.PROBE else decision


# With the defaults, loading 1000 tokens takes as long as computing them.
@pytest.mark.parametrize(
    ("what", "slower"),
    [
        ("rate", {"read": 5e-4}),
        ("latency", {"latency": 0.5}),
        ("computing", {"token": -1e-3}),
    ],
)
def test_a_prefix_is_loaded_exactly_as_long_as_that_is_faster(what: str, slower: dict[str, float]) -> None:
    for change, expected in ((-0.02, Decision.LOAD), (0.02, Decision.COMPUTE)):
        world = World()
        for name, by in slower.items():
            setattr(world, name, getattr(world, name) + change * by)
        assert decided(taught(world), 1000) is expected, (what, change)


def test_a_length_from_which_loading_is_faster() -> None:
    rule = taught(World())
    assert [decided(rule, tokens) for tokens in (200, 980)] == [Decision.COMPUTE] * 2
    assert [decided(rule, tokens) for tokens in (1020, 100_000)] == [Decision.LOAD] * 2


def test_tokens_later_in_a_prompt_cost_more_to_compute() -> None:
    """With 1e-6 s for each pair, 500 tokens from 500 on take as long as their read: 0.5 + 0.25 s."""
    world = World(token=7.5e-4, attended=1e-6)
    rule = taught(world)
    crossing = next(at for at in range(0, 4000, 10) if world.computing(at, at + 500) >= world.reading(500))
    assert decided(rule, 500, crossing - 30) is Decision.COMPUTE
    assert decided(rule, 500, crossing + 30) is Decision.LOAD


def test_tokens_that_are_awaited_already_delay_a_read() -> None:
    """2000 tokens take 1.5 s alone, and 2 s behind another 1000."""
    rule = taught(World())
    assert decided(rule, 2000) is Decision.LOAD
    ahead = rule.sent(LoadTier.DISK, 980, TIMEOUT_S, 0.4)
    assert decided(rule, 2000) is Decision.LOAD
    more = rule.sent(LoadTier.DISK, 40, TIMEOUT_S, 0.4)
    assert decided(rule, 2000) is Decision.COMPUTE
    assert rule.decide(LoadTier.DISK, range(2000), 0.5, awaited=40) is Decision.LOAD, "they are a part of these 2000"
    rule.ended(ahead, 1.0, 0.4 + World().reading(980))
    rule.ended(more, 1.0, 0.4 + World().reading(1020))
    assert decided(rule, 2000) is Decision.LOAD


def test_what_has_come_of_a_read_delays_no_other() -> None:
    """1000 tokens take 1 s alone, and 2 s behind another 1000 that have just begun. Computing takes 1.3 s."""
    rule = taught(World(token=1.3e-3, latency=0.0, read=1e-3))
    rule.sent(LoadTier.DISK, 1000, TIMEOUT_S, NOW)
    assert rule.part_in_time(LoadTier.DISK, 1000, 1.0, NOW + 0.5) == pytest.approx(0.5, rel=0.01)
    found = [rule.decide(LoadTier.DISK, range(1000), NOW + passed) for passed in (0.68, 0.72)]
    assert found[0] is not Decision.LOAD and found[1] is Decision.LOAD


def test_reads_of_a_tier_that_is_never_idle_measure_it_exactly() -> None:
    """Each read waits for what is still to come of those before it, which is known once they have ended."""
    random, rule, world = chance(), LoadOrCompute(), World(latency=0.0, read=1e-3)
    now, free_at, ended, under_way = 0.0, 0.0, 0, deque[tuple[float, SentRead]]()
    while ended < 100:
        now = max(now, free_at - random.uniform(0, 8))
        while under_way and under_way[0][0] <= now:
            ended_at, read = under_way.popleft()
            rule.ended(read, 1.0, ended_at)
            ended += 1
        tokens = int(random.integers(1000, 4000))
        if ended >= 10:
            needs = max(0.0, free_at - now) + world.reading(tokens) / 2
            assert rule.part_in_time(LoadTier.DISK, tokens, needs, now) == pytest.approx(0.5, abs=0.01), ended
        free_at = max(now, free_at) + world.reading(tokens)
        under_way.append((free_at, rule.sent(LoadTier.DISK, tokens, TIMEOUT_S, now)))


def test_a_read_that_hangs_says_that_the_tier_is_slow() -> None:
    rule = taught(World())
    rule.sent(LoadTier.DISK, 1, TIMEOUT_S, 1.0)
    assert rule.decide(LoadTier.DISK, range(2000), 2.9) is Decision.LOAD
    assert rule.decide(LoadTier.DISK, range(2000), 3.1) is not Decision.LOAD


def test_nothing_is_known_of_a_tier_or_an_engine_at_first() -> None:
    rule = LoadOrCompute()
    assert decided(rule, 1) is Decision.LOAD and rule.longest_wait(LoadTier.DISK, range(1)) == math.inf
    read_once(rule, World(), 1, 0.0)
    assert decided(rule, 1) is Decision.LOAD, "it never computed"
    rule.computed(1000, attended(range(1000)), 1.0)
    assert decided(rule, 1) is Decision.COMPUTE
    assert rule.decide(LoadTier.FLEET, range(1), 0.5) is Decision.LOAD, "it was never read"


def test_a_request_waits_a_little_longer_than_it_would_compute() -> None:
    rule = taught(World())
    assert rule.longest_wait(LoadTier.DISK, range(2000)) == pytest.approx(2.5, rel=0.01)
    assert taught(World(), "always").longest_wait(LoadTier.DISK, range(2000)) == math.inf


def test_a_part_of_a_prefix_comes_in_time() -> None:
    rule = taught(World())
    assert rule.part_in_time(LoadTier.DISK, 1000, 0.75, NOW) == pytest.approx(0.5, rel=0.01)
    assert rule.part_in_time(LoadTier.DISK, 1000, 2.0, NOW) == 1.0
    assert rule.part_in_time(LoadTier.DISK, 1000, 0.4, NOW) == 0.0
    assert rule.part_in_time(LoadTier.FLEET, 1000, 0.0, NOW) == 1.0, "it was never read"


@pytest.mark.parametrize("slow", [True, False])
def test_a_setting_overrides_what_was_measured(slow: bool) -> None:
    world = World(read=1.0 if slow else 0.0)
    assert decided(taught(world, "always"), 1000) is Decision.LOAD
    assert decided(taught(world, "never"), 1000) is Decision.NEVER
    mixed = taught(world, "disk=always" if slow else "disk=never")
    assert decided(mixed, 1000) is (Decision.LOAD if slow else Decision.NEVER)
    assert mixed.asks(LoadTier.DISK, range(1000), 0.5) is slow
    assert mixed.decide(LoadTier.FLEET, range(1000), 0.5) is Decision.LOAD, "it is measured, and nothing is known"


@pytest.mark.parametrize("wrong", ["", "sometimes", "disk", "disk=", "gpu=never", "disk=always,", "never,remote=never"])
def test_a_wrong_setting_is_refused_with_what_is_known(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"always, measured, never, or TIER=MODE for memory, disk, remote.*not"):
        load_modes(wrong)
    assert load_modes("disk=always, remote=never") == {LoadTier.DISK: "always", LoadTier.FLEET: "never"}


def test_a_refused_read_says_nothing_and_one_without_an_answer_does() -> None:
    rule = taught(World())
    rule.ended(rule.sent(LoadTier.DISK, 2000, 100.0, 0.1), 0.0, 0.11)
    assert decided(rule, 200) is Decision.COMPUTE, "it was not read within 10 ms"
    for at in range(5):
        rule.ended(rule.sent(LoadTier.DISK, 2000, 2.0, 10.0 * at), 0.0, 10.0 * at + 2.0)
    assert decided(rule, 2000) is not Decision.LOAD
    assert not rule.asks(LoadTier.DISK, range(2000), 40.5)


def test_a_tier_that_hangs_wastes_at_most_a_tenth() -> None:
    """A read that brings nothing in a second counts as ten seconds, until the tier is found to work again."""
    for computing, decisions in ((9.0, (Decision.COMPUTE, Decision.PROBE)), (11.0, (Decision.LOAD,))):
        rule = LoadOrCompute()
        for tokens in (250, 500, 1000, 2000, 4000):
            rule.computed(tokens, attended(range(tokens)), computing * tokens / 1000)
        for at in range(20):
            found = rule.decide(LoadTier.DISK, range(1000), 100.0 * at)
            assert found in decisions or not at, (computing, at, found)  # nothing is known at first
            rule.ended(rule.sent(LoadTier.DISK, 1000, 1.0, 100.0 * at), 0.0, 100.0 * at + 1)
        for at in range(2):
            rule.ended(rule.sent(LoadTier.DISK, 1000, 1.0, 3000.0 + at), 1.0, 3000.5 + at)
        assert rule.decide(LoadTier.DISK, range(1000), 3100.0) is Decision.LOAD


def test_a_long_prefix_is_read_to_measure_the_tier_where_only_short_ones_were() -> None:
    """Short reads leave open whether the tier is slow for each token, or only to begin with."""
    rule, world = taught(World(token=5e-4)), World(latency=0.5, read=0.0)
    for at in range(10):
        read_once(rule, world, 500, 100.0 + at)
    decisions = [rule.decide(LoadTier.DISK, range(20_000), now) for now in (109.6, 110.0, 113.5, 113.7)]
    assert decisions == [Decision.PROBE, Decision.COMPUTE, Decision.COMPUTE, Decision.PROBE]
    read_once(rule, world, 20_000, 113.7)
    assert rule.decide(LoadTier.DISK, range(20_000), 115.0) is Decision.LOAD


def test_a_prefix_is_not_read_to_measure_the_tier_where_other_reads_say_enough() -> None:
    world = World(token=5e-4, latency=0.0, read=1e-3)
    rule = taught(world)
    for at in range(5):
        read_once(rule, world, 500, 100.0 + 10 * at)
        assert rule.decide(LoadTier.DISK, range(20_000), 101.0 + 10 * at) is Decision.COMPUTE


@pytest.mark.parametrize("each_s", [0.005, 0.1, 1.0])
def test_a_tier_that_recovers_is_loaded_from_within_ten_seconds(each_s: float) -> None:
    """Until then few reads are probes: one in two seconds at most, and one in a hundred if that is more than one in
    four seconds."""
    rule, recovers_at = taught(World(read=0.1)), 100.0
    now, asked, probes = 10.0, 0, list[float]()
    while (decision := rule.decide(LoadTier.DISK, range(4000), now)) is not Decision.LOAD:
        asked += 1
        if decision is Decision.PROBE:
            probes.append(now)
            world = World() if now >= recovers_at else World(read=0.001)
            read = rule.sent(LoadTier.DISK, 4000, TIMEOUT_S, now)
            rule.ended(read, 1.0, now + world.reading(4000))
        now += each_s
        assert now < recovers_at + 10.0, "it was not found"
    assert now >= recovers_at, "it was slow until then"
    assert min(np.diff(probes)) >= 2.0
    assert 10 <= len(probes) <= max((now - 10.0) / 4, asked / 100) + 1


def test_a_single_slow_step_or_read_changes_little() -> None:
    rule = taught(World())
    rule.computed(1000, attended(range(1000)), 100.0)
    assert rule.longest_wait(LoadTier.DISK, range(2000)) < 3.0
    read_once(rule, World(read=1.0), 1000, 50.0)
    assert decided(rule, 4000) is Decision.LOAD


def test_a_slow_read_that_is_far_longer_than_all_others_is_believed() -> None:
    """Short reads leave open what it takes. One that takes as long where many say otherwise is an outlier at first."""
    for longest, expected in ((1_600, Decision.COMPUTE), (22_500, Decision.LOAD)):
        rule = LoadOrCompute()
        for tokens in (500, 1_000, 4_000, 16_000):
            rule.computed(tokens, 0.0, tokens * 2.5e-4)
        for at, tokens in enumerate((1_000, 1_200, 1_400, longest, 1_300, 1_100, 1_500, longest)):
            rule.ended(rule.sent(LoadTier.DISK, tokens, TIMEOUT_S, 10.0 * at), 1.0, 10.0 * at + 2.0)
        assert rule.decide(LoadTier.DISK, range(22_500), 100.0) is Decision.LOAD, "2 s are less than 5.6 s"
        rule.ended(rule.sent(LoadTier.DISK, 22_500, TIMEOUT_S, 100.0), 1.0, 107.7)
        found = rule.decide(LoadTier.DISK, range(22_500), 110.0)
        assert (found is Decision.LOAD) is (expected is Decision.LOAD), longest


def test_a_tier_that_is_slow_in_the_mean_is_left_alone() -> None:
    """Three of ten reads take a sixth of the time of computing, the others five times as long."""
    random, rule, took = chance(), LoadOrCompute(), list[float]()
    for tokens in (250, 500, 1000, 2000):
        rule.computed(tokens, 0.0, tokens * 1e-3)
    for at in range(300):
        now, loading = 10.0 * at, 1 / 6 if random.random() < 0.3 else 5.0
        decision = rule.decide(LoadTier.DISK, range(1000), now)
        if decision is not Decision.COMPUTE:
            rule.ended(rule.sent(LoadTier.DISK, 1000, TIMEOUT_S, now), 1.0, now + loading)
        waits = min(loading, 1.25) if decision is Decision.LOAD else 0.0
        took.append(waits + (0.0 if waits == loading and decision is Decision.LOAD else 1.0))
    assert np.mean(took[FIRST:]) <= 1.3


def test_a_read_counts_once() -> None:
    rule = taught(World())
    read = rule.sent(LoadTier.DISK, 1000, TIMEOUT_S, 0.0)
    for _ in range(100):
        rule.ended(read, 1.0, 0.9)
    assert rule.part_in_time(LoadTier.DISK, 1000, 0.75, NOW) == pytest.approx(0.5, rel=0.2)


# --- random worlds ---------------------------------------------------------------------------------------------------

CASES, REQUESTS, FIRST = 2_000, 40, 10
SEVERAL = 3  # one case in 20,000 exceeds the limit: more of them than this by chance once in 100,000 runs


def random_world(random: np.random.Generator) -> World:
    """Returns a world in which loading a prompt takes from an eighth to eight times as long as computing it."""
    token, length = 10 ** random.uniform(-5, -3), 8192
    world = World(token=token, attended=token * random.choice([0, 1]) * random.uniform(0, 2) / length)
    world.step = world.computing(0, 256) * random.uniform(0, 1)
    whole = world.computing(0, length) * 8 ** random.uniform(-1, 1)
    part = random.uniform(0, 0.9)
    world.latency, world.read = part * whole, (1 - part) * whole / length
    return world


class Play:
    """The requests of one case, in virtual time.

    A burst of requests comes at once; each burst after the one before has ended. Noise of 5 % is on each time.
    """

    def __init__(self, random: np.random.Generator) -> None:
        self._random, self._world, self._rule, self._now = random, random_world(random), LoadOrCompute(), 0.0
        self._burst = int(random.choice([1, 1, 4]))
        self.took: list[float] = []
        self.best: list[float] = []

    def _noise(self) -> float:
        return float(np.exp(self._random.normal(0, 0.05)))

    def run(self) -> None:
        while len(self.took) < REQUESTS:
            self._run_burst()

    def _run_burst(self) -> None:
        queued, free_at, open_reads = 0, 0.0, []
        for _ in range(self._burst):
            tokens = int(np.exp(self._random.uniform(np.log(256), np.log(32768))))
            computing = self._world.computing(0, tokens) * self._noise()
            loading = self._world.reading(tokens + queued) * self._noise()
            decision = self._rule.decide(LoadTier.DISK, range(tokens), self._now)
            waits = 0.0
            if decision in (Decision.LOAD, Decision.PROBE):
                read = self._rule.sent(LoadTier.DISK, tokens, TIMEOUT_S, self._now)
                open_reads.append((self._now + loading, read))
                queued += tokens
            if decision is Decision.LOAD:
                waits = min(loading, self._rule.longest_wait(LoadTier.DISK, range(tokens)))
            loaded = decision is Decision.LOAD and waits == loading
            self._compute(0 if not loaded else tokens, tokens, computing)
            self.took.append(waits + (0.0 if loaded else computing))
            self.best.append(min(computing, loading))
            free_at = max(free_at, self.took[-1])
        for ends_at, read in sorted(open_reads, key=lambda one: one[0]):
            self._rule.ended(read, 1.0, ends_at)
            free_at = max(free_at, ends_at - self._now)
        self._now += free_at + self._random.uniform(0, 2)

    def _compute(self, begins: int, ends: int, seconds: float) -> None:
        """Measures a step that computes the prompt, or only a few tokens after what was loaded."""
        tail = int(self._random.integers(16, 512))
        own = self._world.computing(ends, ends + tail) * self._noise()
        step = self._world.step * self._noise()
        pairs = attended(range(begins, ends)) + attended(range(ends, ends + tail))
        self._rule.computed(ends - begins + tail, pairs, step + own + (seconds if begins < ends else 0.0))


def test_random_worlds_against_the_better_of_both_in_hindsight() -> None:
    random = chance()
    ratios = np.empty(CASES)
    for case in range(CASES):
        play = Play(random)
        play.run()
        ratios[case] = sum(play.took[FIRST:]) / sum(play.best[FIRST:])
    assert ratios.mean() <= 1.05, ratios.mean()
    slow = np.flatnonzero(ratios > 1.3)
    assert len(slow) <= SEVERAL, (slow, ratios[slow])
    assert ratios.max() <= 2.25, int(ratios.argmax())  # what a read that is given up costs at most


@pytest.mark.parametrize(
    ("seconds", "prompts", "says"),
    [
        ("1s", [range(512)], r"the time of computed\(\) must be a number of seconds, not '1s'"),
        (0.1, [512], r"ranges of a prompt's tokens, as range\(0, 512\), not 512"),
        (0.1, [range(512), [1, 2]], r"not \[1, 2\]"),
    ],
)
def test_a_step_of_wrong_types_is_refused(seconds: Any, prompts: list[Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        ProcessRule().computed(seconds, prompts)


def test_a_step_may_have_seconds_of_numpy_and_no_prompts() -> None:
    rule = ProcessRule()
    rule.computed(np.float64(0.5), [range(512)])
    rule.computed(1, [])
