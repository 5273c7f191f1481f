"""Tests what a step costs that stores and loads nothing: no message, no event of the GPU, and few instructions."""

from __future__ import annotations

import pickle
from typing import Any, Final
from unittest import mock

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from counted_instructions import instructions_of
from harnessed_models import assert_nothing_is_left, engine_of
from harnessed_scheduler import BLOCK, BY_REQUEST
from pagetier.client import Client
from pagetier.client.engines.vllm.connector import PagetierConnector
from pagetier.client.engines.vllm.connector_metadata import NOTHING_TO_DO
from pagetier.client.engines.vllm.messages import StepCommands
from pagetier.client.engines.vllm.worker import WorkerHalf
from running_daemon import RunningDaemon

REQUESTS: Final = 8
MOST: Final = 360  # instructions of the worker and of this test; they were 790 when each step looked at all groups
SENT_BYTES: Final = 100  # they were 330


def _worker_of(engine: Any, client: Client) -> PagetierConnector:
    """Returns a worker's connector of an engine, which must record no event."""
    worker = PagetierConnector(engine.connector._config, KVConnectorRole.WORKER, engine.connector._groups)
    worker._worker = WorkerHalf(client, (), lambda: pytest.fail("an event was recorded"))
    return worker


def _step(worker: PagetierConnector, metadata: Any) -> None:
    """Calls a connector as vLLM's worker does in each step."""
    worker.handle_preemptions(metadata)
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(None)
    worker.wait_for_save()
    results = worker.get_transfer_results(set()) if BY_REQUEST else worker.get_finished(set())
    assert results is not None and not worker.get_block_ids_with_load_errors()
    assert worker.get_kv_connector_stats() is None and worker.build_connector_worker_meta() is None
    worker.clear_connector_metadata()


def test_a_step_without_a_page_costs_the_worker_few_instructions(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of("full", daemon, client)
    worker = _worker_of(engine, client)
    worker._unsent = []
    executed = instructions_of(lambda: _step(worker, NOTHING_TO_DO))
    assert executed < MOST
    assert_nothing_is_left(engine, daemon)


def test_answers_send_a_message_where_a_block_begins_and_a_page_where_one_ends(
    daemon: RunningDaemon, client: Client
) -> None:
    engine = engine_of("full", daemon, client)
    for number in range(REQUESTS):
        engine.submit(number, 3, answer=BLOCK + 4)
    following = engine.half._next
    with mock.patch.object(following, "_planned", side_effect=following._planned) as planned:
        sent = [engine.step().kv_connector_metadata for _ in range(BLOCK + 3)]
    assert planned.call_count < 5, "each other step costs the same for one request and for many"
    commands: list[StepCommands] = [one.commands for one in sent]
    assert [at for at, one in enumerate(sent) if one is not NOTHING_TO_DO] == [0, BLOCK - 3, BLOCK - 2]
    assert [len(one.stores) for one in commands if one.stores] == [REQUESTS]
    engine.run()
    assert_nothing_is_left(engine, daemon)


def test_a_request_that_waits_for_blocks_costs_no_planned_steps(daemon: RunningDaemon, client: Client) -> None:
    """vLLM asks for it in each step."""
    engine = engine_of("full", daemon, client)
    engine.submit(1, 1, answer=100)
    engine.step()
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(pool.get_num_free_blocks() - 10)
    engine.submit(2, 300)
    following = engine.half._next
    with (
        mock.patch.object(following, "_planned", side_effect=following._planned) as planned,
        mock.patch.object(engine.half, "matched", side_effect=engine.half.matched) as asked,
    ):
        for _ in range(BLOCK - 3):
            engine.step()
    assert asked.call_count > BLOCK / 2 and planned.call_count < 3
    pool.free_blocks(taken)
    engine.run()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.parametrize("lag", [0, 1])
def test_the_last_stores_of_the_last_request_end(lag: int, daemon: RunningDaemon, client: Client) -> None:
    """With asynchronous scheduling its last page has a key only after its last step, so that an idle step sends it."""
    engine = engine_of("full", daemon, client, lag=lag)
    engine.submit(1, 2 * BLOCK - 2, answer=3)
    engine.run()
    assert engine.worker.planned_stores == 2
    assert_nothing_is_left(engine, daemon)


def test_the_message_of_a_step_without_a_command_is_its_name() -> None:
    data = pickle.dumps(NOTHING_TO_DO, pickle.HIGHEST_PROTOCOL)
    assert pickle.loads(data) is NOTHING_TO_DO
    assert len(data) < SENT_BYTES
