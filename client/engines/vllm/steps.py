"""The steps of vLLM's scheduler: which need no look at each request, what the next one does, how long they take."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.messages import NO_COMMANDS, LoadCommand, StepCommands, StoreCommand
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import (
    blocks_of_others,
    offers_of,
    store_commands,
    take_blocks,
    take_more_blocks,
)
from pagetier.client.load_or_compute import LoadOrCompute, attended

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


class NextStep:
    """Collects the commands that no step has sent yet. Called by the one thread of vLLM's scheduler.

    Args:
        tracked: The requests, by name.
    """

    def __init__(self, tracked: Mapping[str, RequestState]) -> None:
        self._tracked = tracked
        self._loads: list[LoadCommand] = []
        self._stores: list[StoreCommand] = []
        self._written: set[int] = set()
        self._given: dict[str, Sequence[Sequence[Any]]] = {}
        self._quiet = QuietSteps()

    def load(self, command: LoadCommand) -> frozenset[int]:
        """Adds a load. Returns the blocks that it writes."""
        self._loads.append(command)
        self._written |= (blocks := command.blocks)
        return blocks

    def store(self, commands: Iterable[StoreCommand]) -> None:
        """Adds the last stores of a request, after those that the step itself plans."""
        self._stores.extend(commands)

    def gives(self, request: str, blocks: Sequence[Sequence[Any]]) -> None:
        """Records the blocks of a new request that loads nothing of ours, a row for each of vLLM's groups."""
        self._given[request] = blocks
        self.changes()

    def changes(self) -> None:
        """Records that there is a new request, or one has new blocks: the step looks at each of them."""
        self._quiet.end()

    def build(self, output: Any, gpu: GpuPages | None) -> StepCommands:
        """Returns all commands, and forgets them.

        Args:
            output: vLLM's SchedulerOutput.
            gpu: Plans the stores of an engine that stores pages when they leave its cache.
        """
        # Blocks come before stores: a page may become complete in a block that this very step has given.
        if self._quiet.take(output):
            self._written |= take_more_blocks(self._tracked, output)
        else:
            self._stores[:0] = self._planned(output, gpu)
        if not (self._loads or self._stores or self._written):
            return NO_COMMANDS
        commands = StepCommands(tuple(self._loads), tuple(self._stores), frozenset(self._written))
        self._loads, self._stores, self._written = [], [], set()
        return commands

    def _planned(self, output: Any, gpu: GpuPages | None) -> list[StoreCommand]:
        """Returns the stores of a step, after it has recorded the blocks of all requests."""
        tracked, given = self._tracked, self._given
        self._written.update(take_blocks(tracked, output), blocks_of_others(tracked, given, output))
        self._given = {}
        if gpu is not None:
            return [*gpu.plan(tracked, output, self._written)]
        planned = [*store_commands(tracked, output)]
        self._quiet.planned(tracked, output)
        return planned


class LoadedFirst:
    """Lets vLLM's scheduler reach the requests that are loaded, behind a waiting one for which it has too few blocks.

    Without a queue for requests that hold blocks (up to 0.30), such a request ends the look of a step at those that
    wait. The requests behind it hold the blocks that it lacks, and would never be computed. So once one was refused,
    vLLM has to ask for all of them again later, until those that are loaded are computed. No other request overtakes
    the refused one in the meantime.

    Attributes:
        is_needed: Whether vLLM's scheduler has no such queue.
    """

    def __init__(self) -> None:
        self.is_needed = False
        self._refused: set[str] = set()
        self._loaded: set[str] = set()

    def __len__(self) -> int:
        """Returns the number of requests that it knows."""
        return len(self._refused | self._loaded)

    def decide_wait(self, request: str) -> bool:
        """Returns whether vLLM must ask for a request again later. It asks for one whose load has failed, too."""
        return self.is_needed and bool(self._refused and self._loaded) and request not in self._loaded

    def answered(self, request: str, tokens: int | None) -> None:
        """Records the answer to vLLM, which allocates blocks next. None: it must ask again later."""
        (self._refused.discard if tokens is None else self._refused.add)(request)

    def allocated(self, request: str) -> None:
        """Records that a request got blocks."""
        self._refused.discard(request)

    def end_load(self, request: str) -> None:
        """Records that a load has ended, successfully or not."""
        self._loaded.add(request)

    def end_step(self, scheduled: Iterable[str]) -> None:
        """Records which requests a step computes."""
        if self._loaded:
            self._loaded.difference_update(scheduled)

    def finished(self, request: str) -> None:
        """Forgets a request."""
        self._refused.discard(request)
        self._loaded.discard(request)


class _Step(msgspec.Struct, frozen=True):
    """A step that was scheduled at `begun`: the tokens of prompts that it computes, and what they attend to.

    One that computes nothing has -1 tokens.
    """

    begun: float
    tokens: int
    attended: float


_IDLE: Final = _Step(0.0, -1, 0.0)


class StepTimes:
    """Measures the steps of one scheduler, for the rule that loads or computes.

    vLLM may schedule a step before the output of the one before, so a step begins when the one before it has ended.
    Steps that compute nothing say so when they end, or report nothing.

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
            self._steps.append(_IDLE)
            return
        parts: list[range] = []
        if output.total_num_scheduled_tokens > len(scheduled):  # else each request computes one token of its answer
            parts = [part for part in _computed(output, scheduled, tracked) if part]
        self._steps.append(_Step(now, sum(map(len, parts)), math.fsum(map(attended, parts))))

    def end(self, now: float) -> None:
        """Records that the oldest step that computes has ended."""
        while self._steps and self._steps[0] is _IDLE:
            self._steps.popleft()
        if not self._steps:
            return
        step = self._steps.popleft()
        if step.tokens or self._learns_answers:
            self._learns_answers = step.tokens > 0
            self._rule.computed(step.tokens, step.attended, now - max(step.begun, self._ended_at))
        self._ended_at = now

    def end_idle(self, now: float) -> None:
        """Records that the oldest step that computes nothing has ended. Those before it have ended, too."""
        while self._steps and self._steps.popleft() is not _IDLE:
            pass
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
