"""The variable PAGETIER and vLLM's configuration: which flags exclude the connector, without starting an engine."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
from vllm.engine import arg_utils
from vllm.engine.arg_utils import EngineArgs

import tiny_model
from one_host import MODELS, REPORTS_FAILURES
from pagetier.client.engines.vllm import plugin
from pagetier.client.engines.vllm.settings import ConnectorSettings

_LOGGER = "vllm.pagetier"


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Catches what pagetier logs; vLLM's own logger does not propagate."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.WARNING, _LOGGER)
    return caplog


def arguments(**flags: Any) -> EngineArgs:
    """Returns vLLM's arguments for the tiny model."""
    model = tiny_model.make("llama", MODELS)
    return EngineArgs(model=str(model), skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024, **flags)


def configured(args: EngineArgs, value: str = "1") -> Any:
    return plugin.configured(args, value, lambda each: each.create_engine_config())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == _LOGGER]


def test_the_connector_is_configured_and_the_arguments_stay(lines: pytest.LogCaptureFixture) -> None:
    args = arguments()
    for _ in range(2):  # some of vLLM's launchers do it twice
        transfer = configured(args, "mode=load disk_timeout=1s").kv_transfer_config
        assert (transfer.kv_connector, transfer.kv_role) == ("PagetierConnector", "kv_both")
        extra = {"mode": "load_only", "disk_timeout": 1.0, "switch": "mode=load disk_timeout=1s"}
        assert transfer.kv_connector_extra_config == extra
        assert transfer.kv_load_failure_policy == "recompute"
        assert args.kv_transfer_config is None
    assert not warnings(lines)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"kv_offloading_size": 1.0}, "--kv-offloading-size is set"),
        ({"runner": "pooling"}, "--runner pooling is set"),
        ({"enable_prefix_caching": False}, "--no-enable-prefix-caching is set"),
    ],
    ids=["offloading", "pooling", "prefix caching"],
)
def test_a_flag_that_excludes_it_is_named(flags: dict[str, Any], named: str, lines: pytest.LogCaptureFixture) -> None:
    args = arguments(**flags)
    assert plugin.excluding_flag(args, ConnectorSettings()).startswith(named)
    try:
        plain: Any = arguments(**flags).create_engine_config().kv_transfer_config
    except ValueError as error:  # a CPU has no sleep mode, and a Llama does not pool
        with pytest.raises(ValueError) as raised:
            configured(args)
        assert str(raised.value) == str(error) and not warnings(lines)
        return
    found = configured(args).kv_transfer_config
    assert getattr(found, "kv_connector", None) == getattr(plain, "kv_connector", None)
    (line,) = warnings(lines)
    assert line.startswith(f"PAGETIER=1 has no effect: {named}")


@pytest.mark.parametrize("follows", [False, True])
def test_sleep_mode_excludes_it_where_vllm_does_not_ask_connectors(
    follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KVConnectorBase_V1, "supports_sleep_mode", lambda *_: True, raising=False)
    if not follows:
        monkeypatch.delattr(KVConnectorBase_V1, "supports_sleep_mode")
    reason = plugin.excluding_flag(arguments(enable_sleep_mode=True), ConnectorSettings())
    named = "--enable-sleep-mode is set, which needs vLLM 0.33 or later beside pagetier"
    assert reason == ("" if follows else named)


@pytest.mark.skipif(not REPORTS_FAILURES, reason="tested from 0.30 on")
def test_a_draft_model_that_is_not_supported_is_named(lines: pytest.LogCaptureFixture) -> None:
    drafts = {"method": "custom_class", "model": "engine_commands.NoDrafts", "num_speculative_tokens": 2}
    assert configured(arguments(speculative_config=drafts)).kv_transfer_config is None
    (line,) = warnings(lines)
    assert line.startswith("PAGETIER=1 has no effect: ") and "--speculative-config" in line


def test_the_allocator_excludes_it(monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert configured(arguments()).kv_transfer_config is None
    (line,) = warnings(lines)
    assert "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True" in line


def test_prefix_caching_may_be_off_where_the_setting_allows_it() -> None:
    config = configured(arguments(enable_prefix_caching=False), "prefix_caching=always")
    assert config.kv_transfer_config.kv_connector == "PagetierConnector"


def test_what_vllm_refuses_beside_a_connector_starts_without_it(lines: pytest.LogCaptureFixture) -> None:
    def create(args: EngineArgs) -> Any:
        if args.kv_transfer_config is not None:
            raise ValueError("1 validation error\n  no connectors here")
        return args.create_engine_config()

    args = arguments()
    assert plugin.configured(args, "1", create).kv_transfer_config is None
    assert warnings(lines) == ["PAGETIER=1 has no effect: 1 validation error no connectors here"]


def test_an_exception_of_pagetier_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, lines: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a mistake")

    monkeypatch.setattr(plugin, "excluding_flag", broken)
    assert configured(arguments()).kv_transfer_config is None
    assert warnings(lines) == ["PAGETIER=1 has no effect: KeyError('a mistake')"]


def test_what_vllm_raises_without_pagetier_is_raised(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    args = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True)
    with pytest.raises(Exception, match=str(tmp_path)) as plain:
        args.create_engine_config()
    with pytest.raises(type(plain.value), match=str(tmp_path)) as raised:
        configured(args)
    assert str(raised.value) == str(plain.value) and not warnings(lines)


def test_the_entry_point_wraps_vllms_own_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    Args: Any = type("Args", (EngineArgs,), {})  # noqa: N806  a class
    monkeypatch.setattr(arg_utils, "EngineArgs", Args)
    plugin.register()
    assert Args.create_engine_config is EngineArgs.create_engine_config, "off"
    monkeypatch.setenv("PAGETIER", "1")
    for _ in range(2):
        plugin.register()
    args = Args(**{name: getattr(arguments(), name) for name in ("model", "dtype", "max_model_len")})
    assert Args.create_engine_config.__wrapped__ is EngineArgs.create_engine_config
    assert args.create_engine_config().kv_transfer_config.kv_connector == "PagetierConnector"
