"""Measures how long vLLM's steps take, for the rule that loads or computes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.load_or_compute import LoadOrCompute, attended


class _Step(msgspec.Struct, frozen=True):
    """A step that was scheduled at `begun`: the tokens of prompts that it computes, and what they attend to."""

    begun: float
    tokens: int
    attended: float


class StepTimes:
    """The steps of one scheduler whose output it has not processed.

    vLLM may schedule a step before the output of the one before, so a step begins when the one before it has ended. A
    step without tokens may report nothing. While there is one, it is not known which step a report is of.

    Of the steps that compute only answers, the rule learns the first after each one that computes a prompt.

    Args:
        rule: Learns the times.
    """

    def __init__(self, rule: LoadOrCompute) -> None:
        self._rule = rule
        self._steps: deque[_Step] = deque()
        self._ended_at = -math.inf
        self._learns_answers = False

    def begin(self, output: Any, tracked: Mapping[str, RequestState], now: float) -> None:
        """Records that a step begins.

        Args:
            output: vLLM's SchedulerOutput.
            tracked: The requests.
            now: The time, by the clock.
        """
        scheduled: Mapping[str, int] = output.num_scheduled_tokens
        if not scheduled:
            self._steps.clear()
            return
        parts: list[range] = []
        if output.total_num_scheduled_tokens > len(scheduled):  # else each request computes one token of its answer
            parts = [part for part in _computed(output, scheduled, tracked) if part]
        self._steps.append(_Step(now, sum(map(len, parts)), math.fsum(map(attended, parts))))

    def end(self, now: float) -> None:
        """Records that the oldest step has ended."""
        if not self._steps:
            return
        step = self._steps.popleft()
        if step.tokens or self._learns_answers:
            self._learns_answers = step.tokens > 0
            self._rule.computed(step.tokens, step.attended, now - max(step.begun, self._ended_at))
        self._ended_at = now


def _computed(output: Any, scheduled: Mapping[str, int], tracked: Mapping[str, RequestState]) -> list[range]:
    """Returns the tokens of each prompt that a step computes."""
    parts = [_part(new.num_computed_tokens, scheduled[new.req_id]) for new in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        request = tracked[name].request if name in tracked else None
        if request is not None and computed < request.num_prompt_tokens:
            parts.append(_part(computed, scheduled[name]))
    return parts


def _part(computed: int, tokens: int) -> range:
    return range(computed, computed + tokens)
