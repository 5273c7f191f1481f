"""Measures how long SGLang's batches take, for the rule that loads or computes."""

from __future__ import annotations

import math
from typing import Any

from pagetier.client.load_or_compute import LoadOrCompute, attended
from pagetier.shm import clock


class ReportsBatches:
    """A part of pagetier that SGLang's scheduler keeps, and that learns of its batches."""

    def batch_ended(self, batch: Any) -> None:
        """Learns how long a batch of SGLang took, to leave out what is computed faster than it is loaded.

        Args:
            batch: SGLang's ScheduleBatch, of which SGLang has the result.
        """
        raise NotImplementedError


class BatchTimes:
    """The batches of one scheduler. Called by the scheduler's thread; it takes microseconds.

    SGLang may launch a batch before it has the result of the one before, so a batch begins when the one before it has
    ended. Of the batches that compute only answers, the rule learns the first after each one that computes a prompt.

    Args:
        rule: Learns the times.
    """

    def __init__(self, rule: LoadOrCompute) -> None:
        self._rule = rule
        self._ended_at = -math.inf
        self._learns_answers = False

    def ended(self, batch: Any) -> None:
        """Records that SGLang has the result of a batch.

        Args:
            batch: SGLang's ScheduleBatch. Its `launch_ts` is when it was launched, by the clock.
        """
        now, before = clock.now(), self._ended_at
        self._ended_at = now
        mode = batch.forward_mode
        prompts = _prompts(batch) if mode.is_extend_without_speculative() else []
        # The parts of a split prefill are launched one by one, and only the last launch is known.
        known = batch.launch_ts is not None and not mode.is_split_prefill() and not mode.is_idle()
        if known and (prompts or self._learns_answers):
            self._learns_answers = bool(prompts)
            seconds = now - max(batch.launch_ts, before)
            self._rule.computed(sum(map(len, prompts)), math.fsum(map(attended, prompts)), seconds)


def _prompts(batch: Any) -> list[range]:
    """Returns the tokens of each prompt that a batch computes."""
    lengths = zip(batch.prefix_lens or (), batch.extend_lens or (), strict=True)
    return [range(before, before + computed) for before, computed in lengths if computed]
