"""How long engines wait for the fleet and the disk, in virtual time: for answers that are late or never come."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from pagetier.client.engines.fleet_reads import FleetLimits, FleetRead, FleetReads
from pagetier.client.engines.prefetch_thread import ReadEnd
from pagetier.client.engines.vllm.tier_reads import ReadLimits, TierReads
from pagetier.client.load_or_compute import LoadOrCompute, load_modes
from virtual_clock import VirtualClock

_PAGE_TOKENS = 256
ASK_S, READ_S = 0.05, 2.0
LIMITS = FleetLimits(READ_S, _PAGE_TOKENS, ASK_S)
_STEP_S = 0.001


NEVER_READY: Any = SimpleNamespace(ready=False, call_when_ready=lambda call: None)


class _Thread:
    """A thread that does what it is asked for at once, or never."""

    def __init__(self, *, works: bool) -> None:
        self._works = works
        self.disk_s: list[float] = []
        self._open: list[tuple[Callable[[float], None], Any]] = []

    def run(self, call: Callable[[], object]) -> bool:
        if self._works:
            call()
        return True

    def submit(self, match: object, timeout: float, ended: Callable[[float], None]) -> Any:
        self.disk_s.append(timeout)
        self._open.append((ended, SimpleNamespace(ready=False, waker=ReadEnd())))
        return self._open[-1][1]

    def end_reads(self) -> None:
        for ended, pending in self._open:
            ended(1.0)
            pending.ready = True
        self._open.clear()


class _SlowFleet:
    """A client that locates all pages, and that reads until end_reads().

    Attributes:
        read_s: The timeout of each read.
    """

    def __init__(self) -> None:
        self.read_s: list[float] = []
        self._open: list[Callable[[], object]] = []
        self.session = SimpleNamespace(asks_fleet=True)

    def locate(self, match: Any) -> Any:
        def longest_hit(most_bytes: float = math.inf) -> Any:
            return hit_of(match.asked) if most_bytes >= 4 else None

        return SimpleNamespace(match=match, longest_hit=longest_hit, call_when_ready=lambda call: call())

    def prefetch(self, hit: object, timeout: float) -> Any:
        self.read_s.append(timeout)
        wait = lambda timeout: 4  # noqa: E731
        return SimpleNamespace(ready=False, pages=4, wait=wait, call_when_ready=self._open.append)

    def end_reads(self) -> None:
        for call in self._open:
            call()
        self._open.clear()


def hit_of(tokens: int = 4 * _PAGE_TOKENS) -> Any:
    return SimpleNamespace(tokens=tokens, fleet_bytes=4)


def match_of(prompt: int, available: int = 0) -> Any:
    """Returns a match of four pages that found none of them in memory."""
    keys = [b"%031d%d" % (prompt, page) for page in range(4)]
    return SimpleNamespace(
        asked=4 * _PAGE_TOKENS,
        available_tokens=available,
        tokens=0,
        first_key_after=lambda tokens: keys[tokens // _PAGE_TOKENS],
    )


def reads_of(client: Any = None, limits: FleetLimits = LIMITS, *, works: bool = False) -> FleetReads:
    reads = FleetReads(client, _Thread(works=works), LoadOrCompute())  # type: ignore[arg-type]
    reads.limits = limits
    return reads


def learn(rule: LoadOrCompute, seconds: float) -> None:
    """Lets a rule know how long four pages take to compute."""
    for pages in (1, 2, 4):
        rule.computed(pages * _PAGE_TOKENS, 0, seconds * pages / 4)


def asked(reads: FleetReads, prompt: int = 1) -> FleetRead:
    read = reads.ask(match_of(prompt), 0)
    assert read is not None
    return read


def passes_until(clock: VirtualClock, what: Callable[[], bool]) -> Any:
    """Lets time pass until a condition is true. Returns the seconds, to be compared with the expected ones."""
    began = clock.now
    while not what():
        clock.passes(_STEP_S)
        assert clock.now - began < 1000, "never"
    return pytest.approx(clock.now - began, abs=2 * _STEP_S)


def test_an_answer_is_waited_for_then_late_then_forgotten(standing_clock: VirtualClock) -> None:
    reads = reads_of()
    first = asked(reads)
    assert asked(reads) is first, "requests with the same first missing page share it"
    assert passes_until(standing_clock, lambda: not first.waits(standing_clock.now)) == ASK_S
    assert passes_until(standing_clock, lambda: first.is_late(standing_clock.now)) == 0.1
    assert reads.ask(match_of(2), 0) is None, "the daemon does not answer"
    assert passes_until(standing_clock, lambda: reads.ask(match_of(2), 0) is not None) == 10.0
    assert asked(reads, 2).waits(standing_clock.now) and first.ended


@pytest.mark.parametrize(("limit", "late"), [(READ_S, READ_S + 0.1), (0.25, 1.1)])
def test_a_read_is_waited_for_as_long_as_the_limit_says(
    limit: float, late: float, standing_clock: VirtualClock
) -> None:
    read = asked(reads_of(limits=FleetLimits(limit, _PAGE_TOKENS, ASK_S)))
    standing_clock.passes(0.04)
    read.begin_read(hit_of(), NEVER_READY, in_time=True)
    assert passes_until(standing_clock, lambda: not read.waits(standing_clock.now)) == limit
    assert passes_until(standing_clock, lambda: read.is_late(standing_clock.now)) == late - limit


def slow_reads(fleet: _SlowFleet, clock: VirtualClock) -> FleetReads:
    """Returns the reads of an engine that has read four pages in three seconds."""
    reads = reads_of(fleet, works=True)
    assert asked(reads).waits(clock.now), "the fleet was never read"
    clock.passes(3.0)
    fleet.end_reads()
    reads._open.clear()
    return reads


def test_a_fleet_that_is_too_slow_is_measured_again_after_four_seconds(standing_clock: VirtualClock) -> None:
    fleet = _SlowFleet()
    reads = slow_reads(fleet, standing_clock)
    for _ in range(5):
        assert asked(reads).hit is None, "it cannot come in time"
        standing_clock.passes(0.199)
    standing_clock.passes(0.01)
    assert asked(reads).hit is not None
    assert not asked(reads).waits(standing_clock.now), "no request waits for a probe"
    assert fleet.read_s == [READ_S] * 2


def test_a_fleet_that_is_slower_than_computing_is_asked_only_for_probes(standing_clock: VirtualClock) -> None:
    fleet = _SlowFleet()
    reads = slow_reads(fleet, standing_clock)
    reads.limits = FleetLimits(READ_S * 2, _PAGE_TOKENS, ASK_S)
    assert asked(reads).waits(standing_clock.now), "what computing takes is not known"
    standing_clock.passes(3.0)
    fleet.end_reads()
    reads._open.clear()
    learn(reads._rule, 2.9)
    assert reads.ask(match_of(1), 0) is None
    standing_clock.passes(1.0)
    assert not asked(reads).waits(standing_clock.now), "it is a probe"
    standing_clock.passes(0.1)
    fleet.end_reads()
    reads._open.clear()
    assert asked(reads).waits(standing_clock.now), "it is fast again"


def test_a_read_has_at_least_a_second() -> None:
    fleet = _SlowFleet()
    asked(reads_of(fleet, FleetLimits(0.25, _PAGE_TOKENS, ASK_S), works=True))
    assert fleet.read_s == [1.0]


def tracked_of(**fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "prefetch": None,
        "fleet": None,
        "early": None,
        "fleet_wait_begins": 0.0,
        "disk_wait_ends": 0.0,
        "is_try": False,
        "slower": {},
        "wake": lambda: None,
    }
    said = SimpleNamespace(prefetch=True)
    return SimpleNamespace(**defaults | {"said": said, "asks_fleet_again": False} | fields)


@pytest.mark.parametrize(("limit", "disk"), [(3.0, 3.0), (0.25, 1.0), (0.0, 1.0)])
def test_a_request_waits_for_the_disk_as_long_as_the_limit_says(
    limit: float, disk: float, standing_clock: VirtualClock
) -> None:
    thread, tracked = _Thread(works=False), tracked_of()
    reads = TierReads(SimpleNamespace(session=None), thread, ReadLimits(limit))  # type: ignore[arg-type]
    assert reads.begin(tracked, match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now) is bool(limit)
    assert thread.disk_s == [disk]
    assert passes_until(standing_clock, lambda: not reads.decide_wait(tracked, 0, standing_clock.now)) == limit


def test_a_request_that_shares_reads_waits_no_longer_than_one_question_and_one_read(
    standing_clock: VirtualClock,
) -> None:
    """Each question and each read alone would be waited for as long as it takes."""
    client = SimpleNamespace(session=None)
    reads = TierReads(client, _Thread(works=False), ReadLimits(0.0, LIMITS))  # type: ignore[arg-type]
    tracked = tracked_of(fleet=asked(reads.fleet))

    def is_over() -> bool:
        if not tracked.fleet.waits(standing_clock.now + 2 * _STEP_S):
            tracked.fleet = FleetRead(b"", match_of(1), LIMITS)
        return not reads.decide_wait(tracked, 0, standing_clock.now)

    assert passes_until(standing_clock, is_over) == ASK_S + READ_S


@pytest.mark.parametrize(("setting", "reads_s"), [("", [2.0]), ("disk=never", []), ("disk=always", [2.0, 2.0, 2.0])])
def test_pages_on_disk_are_computed_while_that_is_faster(
    setting: str, reads_s: list[float], standing_clock: VirtualClock
) -> None:
    thread = _Thread(works=False)
    limits = ReadLimits(2.0, load=load_modes(setting) if setting else {})
    reads = TierReads(SimpleNamespace(session=None), thread, limits)  # type: ignore[arg-type]
    learn(reads.rule, 0.3)
    if reads.begin(tracked_of(), match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now):
        standing_clock.passes(0.4)
        thread.end_reads()
    waits = [reads.begin(tracked_of(), match_of(at, 4 * _PAGE_TOKENS), 0, standing_clock.now) for at in (2, 3)]
    assert waits == [setting == "disk=always"] * 2
    assert thread.disk_s == reads_s


def test_a_request_that_measures_computing_reads_nothing_when_it_is_due_either(standing_clock: VirtualClock) -> None:
    thread = _Thread(works=False)
    reads = TierReads(SimpleNamespace(session=None), thread, ReadLimits(2.0))  # type: ignore[arg-type]
    reads.rule.computed(1, 0, 0.1)
    assert reads.begin(tracked_of(), match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now)
    standing_clock.passes(25.0 * _PAGE_TOKENS / 128)
    thread.end_reads()
    tracked = tracked_of()
    reads.begin_early(tracked, match_of(2, 4 * _PAGE_TOKENS), disk=True, fleet=False)
    assert tracked.is_try and not reads.begin(tracked, match_of(2, 4 * _PAGE_TOKENS), 0, standing_clock.now)
    assert len(thread.disk_s) == 1 and not tracked.slower
    assert reads.begin(tracked_of(), match_of(3, 4 * _PAGE_TOKENS), 0, standing_clock.now), "once is enough"


def test_requests_with_the_same_pages_on_disk_wait_for_one_read(standing_clock: VirtualClock) -> None:
    """Five reads one after the other would take longer than computing."""
    thread = _Thread(works=False)
    reads = TierReads(SimpleNamespace(session=None), thread, ReadLimits(2.0))  # type: ignore[arg-type]
    learn(reads.rule, 0.3)
    reads.begin(tracked_of(), match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now)
    standing_clock.passes(0.2)
    thread.end_reads()
    waits = [reads.begin(tracked_of(), match_of(2, 4 * _PAGE_TOKENS), 0, standing_clock.now) for _ in range(5)]
    assert all(waits)
    assert not reads.begin(tracked_of(), match_of(3, 4 * _PAGE_TOKENS), 0, standing_clock.now), "others have to queue"


def test_a_convoy_takes_the_time_of_one_read(standing_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    thread, requests = _Thread(works=False), [tracked_of() for _ in range(50)]
    reads = TierReads(SimpleNamespace(session=None), thread, ReadLimits(2.0))  # type: ignore[arg-type]
    learn(reads.rule, 1.0)
    reads.begin(tracked_of(), match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now)
    standing_clock.passes(0.3)
    thread.end_reads()
    monkeypatch.setattr(reads.rule, "sent", sent := Mock(wraps=reads.rule.sent))
    for at, tracked in enumerate(requests):
        if at % 2:  # the others are due when they arrive
            reads.begin_early(tracked, match_of(2, 4 * _PAGE_TOKENS), disk=True, fleet=False)
        assert reads.begin(tracked, match_of(2, 4 * _PAGE_TOKENS), 0, standing_clock.now)
        standing_clock.passes(0.3 / 50)
    assert all(reads.decide_wait(tracked, 0, standing_clock.now) for tracked in requests)
    thread.end_reads()
    assert not any(reads.decide_wait(tracked, 0, standing_clock.now) for tracked in requests)
    assert sum(one.args[1] for one in sent.call_args_list) == 4 * _PAGE_TOKENS, "nothing is read twice"


def test_a_request_waits_a_little_longer_for_the_disk_than_computing_takes(standing_clock: VirtualClock) -> None:
    reads = TierReads(SimpleNamespace(session=None), _Thread(works=False), ReadLimits(2.0))  # type: ignore[arg-type]
    learn(reads.rule, 0.4)
    tracked = tracked_of()
    assert reads.begin(tracked, match_of(1, 4 * _PAGE_TOKENS), 0, standing_clock.now)
    assert passes_until(standing_clock, lambda: not reads.decide_wait(tracked, 0, standing_clock.now)) == 0.5
