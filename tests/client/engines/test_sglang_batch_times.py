"""The rule of an engine with SGLang learns what SGLang's batches take, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.shm import clock
from virtual_clock import VirtualClock


def batch(launched: float | None, *parts: range, split: bool = False) -> Any:
    """Returns a batch that computes these parts of prompts, or an answer if there are none."""
    mode = SimpleNamespace(
        is_extend_without_speculative=lambda: bool(parts), is_split_prefill=lambda: split, is_idle=lambda: False
    )
    lengths = {"prefix_lens": [part.start for part in parts], "extend_lens": [len(part) for part in parts]}
    return SimpleNamespace(forward_mode=mode, launch_ts=launched, **lengths)


class _Learned:
    """A rule that remembers what it has learned."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, float]] = []

    def computed(self, tokens: int, attended: float, seconds: float) -> None:
        self.steps.append((tokens, attended, round(seconds, 6)))


def test_batches_that_overlap_are_measured_one_after_the_other(virtual_clock: VirtualClock) -> None:
    rule: Any = _Learned()
    times, launched = BatchTimes(rule), clock.now()
    for _ in range(3):  # each is launched while the one before it computes
        virtual_clock.passes(0.5)
        times.ended(batch(launched, range(300), range(100, 300)))
        launched = clock.now() - 0.4
    attended = 300 * 299 / 2 + 200 * 399 / 2
    assert rule.steps == [(500, attended, 0.5)] * 3


def test_one_batch_of_answers_is_learned_after_each_of_prompts(virtual_clock: VirtualClock) -> None:
    rule: Any = _Learned()
    times = BatchTimes(rule)
    for prompts in ([range(10)], [], [], [range(10)], []):
        launched = clock.now()
        virtual_clock.passes(0.25)
        times.ended(batch(launched, *prompts))
    assert [tokens for tokens, _, _ in rule.steps] == [10, 0, 10, 0]


@pytest.mark.parametrize("unknown", [batch(None, range(500)), batch(0.0, range(500), split=True), batch(0.0)])
def test_what_does_not_say_how_fast_the_engine_is_counts_nothing(virtual_clock: VirtualClock, unknown: Any) -> None:
    rule: Any = _Learned()
    virtual_clock.passes(1.0)
    BatchTimes(rule).ended(unknown)
    assert not rule.steps
