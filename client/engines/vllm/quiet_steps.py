"""Finds steps that complete no page without a look at each of their requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import offers_of


class QuietSteps:
    """The steps after a planned one in which the same requests compute one token each and complete no page.

    A planned step knows how many tokens each of its requests needs for its next page, so the fewest of them are a
    number of quiet steps. Each step before a page then costs the same for one request and for a thousand.
    """

    def __init__(self) -> None:
        self._left = 0
        self._planned: frozenset[str] = frozenset()

    def end(self) -> None:
        """Lets the next step be planned, because vLLM has begun to change the state of a request."""
        self._left = 0

    def take(self, output: Any) -> bool:
        """Returns whether a step is quiet, and counts it. `output` is vLLM's SchedulerOutput."""
        scheduled: Mapping[str, int] = output.num_scheduled_tokens
        if (
            not self._left
            or output.total_num_scheduled_tokens != len(scheduled)
            or output.scheduled_new_reqs
            or output.scheduled_cached_reqs.resumed_req_ids
            or offers_of(output)
            or not scheduled.keys() <= self._planned
        ):
            return False
        self._left -= 1
        return True

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
        self._left, self._planned = max(0, min(steps, default=0)), frozenset(scheduled)
