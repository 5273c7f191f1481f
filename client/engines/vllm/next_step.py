"""Collects the commands of the next step from what vLLM reports of its requests, and plans the stores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pagetier.client.engines.vllm.gpu_pages import GpuPages
from pagetier.client.engines.vllm.messages import NO_COMMANDS, LoadCommand, StepCommands, StoreCommand
from pagetier.client.engines.vllm.quiet_steps import QuietSteps
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import (
    blocks_of_others,
    store_commands,
    take_blocks,
    take_more_blocks,
)


class NextStep:
    """The commands that no step has sent yet. Called by the one thread of vLLM's scheduler.

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
