"""Finds steps that complete no page without a look at each of their requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import offers_of

_BATCHES: Final = 8  # as many as a pipeline usually has stages; each step may look at all of them


class _QuietBatch(msgspec.Struct):
    """Requests of one planned step, and how many of the later steps with none but them are quiet."""

    requests: set[str]
    steps: int


class QuietSteps:
    """The steps after a planned one in which the same requests compute one token each and complete no page.

    A planned step knows how many tokens each of its requests needs for its next page, so the fewest of them are a
    number of quiet steps. Each step before a page then costs the same for one request and for a thousand. A pipeline
    has a batch in each of its stages, so several are known. No request is in two of them: a step of one batch does not
    change what is known of the others.
    """

    def __init__(self) -> None:
        self._batches: list[_QuietBatch] = []

    def end(self) -> None:
        """Lets the next step be planned, because vLLM has begun to change the state of a request."""
        self._batches.clear()

    def take(self, output: Any) -> bool:
        """Returns whether a step is quiet, and counts it. `output` is vLLM's SchedulerOutput."""
        scheduled: Mapping[str, int] = output.num_scheduled_tokens
        if (
            not self._batches
            or not 0 < len(scheduled) == output.total_num_scheduled_tokens
            or output.scheduled_new_reqs
            or output.scheduled_cached_reqs.resumed_req_ids
            or offers_of(output)
        ):
            return False
        for batch in self._batches:
            if scheduled.keys() <= batch.requests:
                batch.steps -= 1
                if not batch.steps:
                    self._batches.remove(batch)
                return True
        return False

    def planned(self, tracked: Mapping[str, RequestState], output: Any) -> None:
        """Records a step whose stores were planned.

        Args:
            tracked: The requests.
            output: vLLM's SchedulerOutput.
        """
        scheduled: Mapping[str, int] = output.num_scheduled_tokens
        steps = [
            one.steps_before_page(one.request.num_computed_tokens + tokens)
            for name, tokens in scheduled.items()
            if (one := tracked.get(name)) is not None
        ]
        for batch in self._batches:
            batch.requests.difference_update(scheduled)
        others = [batch for batch in self._batches if batch.requests]
        quiet = min(steps, default=0)
        newest = [_QuietBatch(set(scheduled), quiet)] if quiet > 0 else []
        self._batches = (newest + others)[:_BATCHES]
