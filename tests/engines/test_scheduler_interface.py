"""Tests what vLLM's scheduler asks of connectors in later versions, with its own classes."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from disk_daemon import write_through
from eventually import eventually
from harnessed_models import PROMPTS, assert_nothing_is_left, engine_of, keys_of
from harnessed_scheduler import BLOCK, BY_REQUEST, PAGE, open_half
from pagetier.client import Client
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.request_hints import NOTHING, HintReader, RequestHints
from pagetier.client.engines.vllm import connector as connector_module
from pagetier.client.engines.vllm.connector_metadata import ShapesMetadata
from running_daemon import RunningDaemon
from vllm_harness import harness


@pytest.mark.skipif(not BY_REQUEST, reason="tested from 0.30 on")
def test_ranks_that_divide_a_prompt_share_its_pages(daemon: RunningDaemon, client: Client) -> None:
    """Their shapes come with their first messages: vLLM has one place for the handshakes of two such ranks."""
    engine = engine_of("attention", daemon, client, parallel=PROMPTS)
    assert len(engine.workers) == 1
    engine.submit(1, 100)
    assert engine.run() == 0
    assert engine.scheduler.reset_prefix_cache()
    engine.submit(1, 100)
    assert engine.run() == 96
    worker = engine.connector
    worker._unsent = [ShapesMetadata((PAGE,))]
    assert worker.get_handshake_metadata() is None and worker.build_connector_worker_meta().shapes
    assert_nothing_is_left(engine, daemon)


def test_hints_in_vllms_own_envelope_are_read() -> None:
    envelopes = pytest.importorskip("vllm.v1.kv_hints", reason="this vLLM's requests have no hints")
    actions = [envelopes.KvHintAction("1", "retain", "1", {"ttl": 30})]
    request = harness().create_request(request_id=1, num_tokens=100, max_tokens=2, block_size=BLOCK)
    reader = HintReader(logging.getLogger("pagetier"), pytest.fail)
    assert reader.read(request, "1") == NOTHING
    request.kv_hints = envelopes.KvHintsEnvelope("1", "message", actions)
    assert reader.read(request, "1") == RequestHints(keep=30.0)


@pytest.mark.skipif(not hasattr(KVConnectorBase_V1, "supports_sleep_mode"), reason="this vLLM does not ask connectors")
def test_vllm_starts_with_sleep_mode(daemon: RunningDaemon, client: Client) -> None:
    engine = engine_of("full", daemon, client)
    config = engine.connector._config
    config._verify_kv_transfer_compat()
    config.model_config.enable_sleep_mode = True
    config._verify_kv_transfer_compat()
    assert_nothing_is_left(engine, daemon)


def test_with_sleep_mode_an_earlier_vllm_starts_without_pagetier(
    daemon: RunningDaemon, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of("full", daemon, client)
    config, groups = engine.connector._config, engine.connector._groups
    monkeypatch.setattr(config.model_config, "enable_sleep_mode", True)
    monkeypatch.setattr(connector_module, "_FOLLOWS_SLEEP", False)
    asleep = connector_module.PagetierConnector(config, KVConnectorRole.SCHEDULER, groups)
    open_half(asleep, ShapesMetadata((PAGE,)))
    assert asleep._scheduler is None and asleep._pending is None
    lines = [line for line in caplog.messages if "pagetier caches nothing" in line]
    assert len(lines) == 1 and "--enable-sleep-mode is set, which needs vLLM 0.33" in lines[0]
    monkeypatch.undo()
    assert_nothing_is_left(engine, daemon)


@pytest.mark.skipif(not hasattr(KVConnectorBase_V1, "on_new_request"), reason="this vLLM does not report new requests")
def test_pages_on_disk_are_read_while_a_request_waits_for_its_turn() -> None:
    """Pages that vLLM's own cache has are not read."""
    with write_through() as daemon, daemon.client() as client:
        engine = engine_of("full", daemon, client, disk_timeout=20.0, engine={"max_num_seqs": 1})
        first = engine.submit(1, 100)
        engine.run()
        daemon.push_out(client, keys_of(engine, first, 0).keys)
        engine.submit(3, 100, answer=40)
        engine.step()
        waiting = harness().create_request(request_id=2, num_tokens=100, max_tokens=4, block_size=BLOCK)
        engine.store_elsewhere(waiting, 96)
        keys = keys_of(engine, waiting, 0).keys
        daemon.push_out(client, keys)
        with mock.patch.object(PrefetchThread, "submit", autospec=True, side_effect=PrefetchThread.submit) as asked:
            engine.submit(1, 100)
            assert not asked.called, "its pages are on the GPU"
            engine.scheduler.add_request(waiting)
            assert asked.call_count == 1 and not waiting.num_computed_tokens
        assert eventually(lambda: pages_in_memory(client, keys) == 6)
        engine.run()
        assert waiting.num_output_tokens == 4
        assert_nothing_is_left(engine, daemon)


def pages_in_memory(client: Client, keys: Any) -> int:
    with client.match(keys) as match:
        return len(match)
