"""Runs the steps of a worker's connector as vLLM's model runner does, and records the copies that it begins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest import mock

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.worker import kv_connector_model_runner_mixin as runner

from pagetier.client.engines.vllm.connector import PagetierConnector
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.messages import (
    NOTHING_FINISHED,
    Finished,
    LoadCommand,
    StepCommands,
    StoreCommand,
)


class _BegunCopies:
    """A worker's half that copies nothing."""

    on_host = False

    def __init__(self) -> None:
        self.counters = ConnectorCounters()
        self.loads: list[LoadCommand] = []
        self.stores: list[StoreCommand] = []
        self.written: frozenset[int] = frozenset()
        self.computes = False

    def use_pages(self, _pages: object) -> None:
        pass

    def use_namespaces(self, _namespaces: object) -> None:
        pass

    def end_overwritten_stores(self, commands: StepCommands) -> None:
        self.written |= commands.written

    def load(self, loads: Iterable[LoadCommand]) -> None:
        self.loads.extend(loads)

    def store(self, stores: Iterable[StoreCommand]) -> None:
        assert self.computes or not self.written, "a late store begins when those of overwritten blocks have ended"
        self.stores.extend(stores)

    def finished(self, _idle: bool) -> Finished:
        return NOTHING_FINISHED


class WorkerSteps:
    """A worker's connector, called by the code of vLLM's model runner.

    Up to 0.30 vLLM does not call wait_for_save() in a step that computes nothing.

    Args:
        config: vLLM's VllmConfig.
        groups: vLLM's KVCacheConfig.

    Attributes:
        finalizes: Whether vLLM calls wait_for_save() in a step that computes. With drafts, its V1 model runner does so
            only in the last stage of a pipeline.
        late_stores: The stores that the last step has begun before it was computed.
    """

    def __init__(self, config: Any, groups: Any) -> None:
        self.finalizes, self.late_stores = True, list[StoreCommand]()
        self._config = config
        self._connector = PagetierConnector(config, KVConnectorRole.WORKER, groups)

    def begun(self, output: Any) -> StepCommands:
        """Returns the commands of a step that its worker has executed. `output` is vLLM's SchedulerOutput."""
        copies: Any = _BegunCopies()
        self._connector._worker = copies
        with mock.patch.multiple(
            runner,
            get_kv_transfer_group=lambda: self._connector,
            has_kv_transfer_group=lambda: True,
            get_forward_context=lambda: None,
        ):
            self._connector.handle_preemptions(output.kv_connector_metadata)
            self.late_stores, copies.stores, copies.computes = copies.stores, [], True
            self._run(output)
        return StepCommands(tuple(copies.loads), tuple(copies.stores), copies.written)

    def _run(self, output: Any) -> None:
        steps = runner.KVConnectorModelRunnerMixin
        if not output.total_num_scheduled_tokens:
            steps.kv_connector_no_forward(output, self._config)
            return
        with steps.maybe_get_kv_connector_output(output, defer_finalize=not self.finalizes):
            pass
