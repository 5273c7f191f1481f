"""Which steps of vLLM say how long computing a prompt takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.vllm.steps import StepTimes


class Measured:
    """A rule that only records."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float, float]] = []

    def computed(self, tokens: int, attended: float, seconds: float) -> None:
        self.steps.append((tokens, attended, pytest.approx(seconds)))  # type: ignore[arg-type]


def step(new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]] | None = None) -> Any:
    """Returns a step with requests by the tokens that they have, and those that they compute."""
    others = cached or {}
    scheduled = {name: tokens for name, (_, tokens) in (new | others).items()}
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=has) for name, (has, _) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(others), num_computed_tokens=[has for has, _ in others.values()]
        ),
    )


TRACKED: Any = {name: SimpleNamespace(request=SimpleNamespace(num_prompt_tokens=100)) for name in ("a", "b")}


@pytest.fixture
def rule() -> Measured:
    return Measured()


@pytest.fixture
def times(rule: Measured) -> StepTimes:
    return StepTimes(rule)  # type: ignore[arg-type]


def test_a_step_counts_the_tokens_of_prompts_and_those_before_them(times: StepTimes, rule: Measured) -> None:
    times.begin(step({"a": (10, 4)}, {"b": (96, 4)}), TRACKED, 1.0)
    times.end(1.5)
    assert rule.steps == [(8, 10 + 11 + 12 + 13 + 96 + 97 + 98 + 99, 0.5)]


def test_of_the_steps_without_prompts_the_first_after_each_prompt_counts(times: StepTimes, rule: Measured) -> None:
    steps = [
        step({}, {"b": (110, 1)}),
        step({"a": (96, 4)}),
        step({}, {"a": (100, 1), "b": (111, 1)}),
        step({}, {"a": (101, 1), "b": (112, 1)}),
        step({"a": (40, 60)}),
        step({}, {"a": (101, 5)}),  # with tokens of a draft model
    ]
    for at, one in enumerate(steps):
        times.begin(one, TRACKED, float(at))
        times.end(at + 0.5 + at / 10)
    assert [(tokens, seconds) for tokens, _, seconds in rule.steps] == [(4, 0.6), (0, 0.7), (60, 0.9), (0, 1.0)]


def test_a_step_that_was_scheduled_ahead_begins_when_the_one_before_it_ends(times: StepTimes, rule: Measured) -> None:
    times.begin(step({"a": (0, 50)}), TRACKED, 1.0)
    times.begin(step({}, {"a": (50, 50)}), TRACKED, 1.1)
    times.end(2.0)
    times.end(2.5)
    times.begin(step({"b": (0, 60)}), TRACKED, 9.0)
    times.end(9.25)
    assert [(tokens, seconds) for tokens, _, seconds in rule.steps] == [(50, 1.0), (50, 0.5), (60, 0.25)]


@pytest.mark.parametrize("reports", [True, False])
def test_a_step_that_computes_nothing_is_taken_for_no_other(times: StepTimes, rule: Measured, reports: bool) -> None:
    """It was scheduled between two others, and ends before the second one begins."""
    times.begin(step({"a": (0, 50)}), TRACKED, 1.0)
    times.begin(step({}), TRACKED, 1.1)
    times.end(2.0)
    times.begin(step({"b": (0, 60)}), TRACKED, 2.1)
    if reports:
        times.end_idle(2.2)
    times.end(3.2)
    assert [(tokens, seconds) for tokens, _, seconds in rule.steps] == [(50, 1.0), (60, 1.0 if reports else 1.1)]


def test_a_step_whose_report_was_lost_is_forgotten(times: StepTimes, rule: Measured) -> None:
    times.begin(step({"a": (0, 50)}), TRACKED, 1.0)
    times.begin(step({}), TRACKED, 1.1)
    times.begin(step({"b": (0, 60)}), TRACKED, 1.2)
    times.end_idle(2.0)
    times.end(3.0)
    assert [(tokens, seconds) for tokens, _, seconds in rule.steps] == [(60, 1.0)]
