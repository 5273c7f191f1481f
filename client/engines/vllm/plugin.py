"""vLLM's door to pagetier: it calls register() in each process, through the entry point `vllm.general_plugins`.

register() makes the connector's name known. If the variable PAGETIER means on, it also adds the connector to the
configuration of each engine that this process starts: vLLM 0.28 to 0.33 load plugins before they call
EngineArgs.create_engine_config(), which is wrapped. An engine for which that fails is configured again without it.
"""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

from pagetier.client.engines.switch import log_no_effect, settings_of, switched_on
from pagetier.client.engines.unsupported import UnsupportedError, reported_as_unsupported
from pagetier.client.engines.vllm.draft_model import draft_model_of
from pagetier.client.engines.vllm.settings import SLEEP_NEEDS, ConnectorSettings, read_settings

log = logging.getLogger("vllm.pagetier")

CONNECTOR: Final = "PagetierConnector"
_MODULE: Final = "pagetier.client.engines.vllm"
_ALLOCATOR: Final = "PYTORCH_CUDA_ALLOC_CONF"
_EXPANDABLE: Final = "expandable_segments:True"


def register() -> None:
    """Makes `kv_connector` accept "PagetierConnector", and follows the variable PAGETIER. May be called repeatedly."""
    with reported_as_unsupported(log):
        _register_connector()
        # Processes of engines and workers get the configuration from the one that parses the flags.
        if (value := switched_on()) and (arguments := sys.modules.get("vllm.engine.arg_utils")) is not None:
            _follow(arguments.EngineArgs, value)


def _register_connector() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, _MODULE, CONNECTOR)
    except ValueError:  # it is registered already
        return


@cache
def _follow(engine_args: Any, value: str) -> None:
    """Adds the connector to the configuration of each engine from now on."""
    create = engine_args.create_engine_config

    @wraps(create)
    def create_engine_config(args: Any, *arguments: Any, **named: Any) -> Any:
        return configured(args, value, lambda each: create(each, *arguments, **named))

    engine_args.create_engine_config = create_engine_config


def configured(args: Any, value: str, create: Callable[[Any], Any]) -> Any:
    """Returns the configuration of an engine: with the connector, or without it and with one line in the log.

    Args:
        args: vLLM's EngineArgs.
        value: The value of the variable PAGETIER.
        create: Returns vLLM's VllmConfig of EngineArgs.
    """
    try:
        connected = with_connector(args, value)
        config = create(connected)
        require_cacheable(config)
    except Exception as error:  # noqa: BLE001  the engine starts without pagetier
        refusal = error
    else:
        # vLLM reads some settings from the arguments that it has resolved. The connector is not one of them.
        vars(args).update(vars(connected) | {"kv_transfer_config": args.kv_transfer_config})
        return config
    config = create(args)  # if the connector was not the reason, this raises what it would raise without pagetier
    log_no_effect(log, value, refusal)
    return config


def with_connector(args: Any, value: str) -> Any:
    """Returns a copy of vLLM's EngineArgs with the connector.

    Raises:
        UnsupportedError: A flag or a variable excludes it.
        ValueError: A setting in the value is wrong.
    """
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    given = settings_of(value, ConnectorSettings)
    if reason := excluding_flag(args, read_settings(given)):
        raise UnsupportedError(reason)
    connected = copy.copy(args)
    connected.kv_transfer_config = KVTransferConfig(
        kv_connector=CONNECTOR, kv_role="kv_both", kv_load_failure_policy="recompute", kv_connector_extra_config=given
    )
    KVConnectorFactory.get_connector_class(connected.kv_transfer_config)  # its import may fail
    return connected


def excluding_flag(args: Any, settings: ConnectorSettings) -> str:
    """Returns the flag or the variable that excludes the connector, and why; "" if there is none."""
    transfer, follows = args.kv_transfer_config, settings.prefix_caching == "follow"
    named = " and names pagetier's connector, which is used as it says" if CONNECTOR in str(transfer) else ""
    reasons = {
        f"--kv-transfer-config is set{named}": transfer is not None,
        "--kv-offloading-size is set, which selects another connector": args.kv_offloading_size is not None,
        f"--enable-sleep-mode is set, {SLEEP_NEEDS}": args.enable_sleep_mode and not _connectors_follow_sleep(),
        "--runner pooling is set": args.runner == "pooling",
        "--no-enable-prefix-caching is set": args.enable_prefix_caching is False and follows,
        f"{_ALLOCATOR} has {_EXPANDABLE}, which needs --enable-cumem-allocator beside a connector": (
            _EXPANDABLE in os.environ.get(_ALLOCATOR, "") and not args.enable_cumem_allocator
        ),
    }
    return next((reason for reason, excludes in reasons.items() if excludes), "")


def _connectors_follow_sleep() -> bool:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    return hasattr(KVConnectorBase_V1, "supports_sleep_mode")


def require_cacheable(config: Any) -> None:
    """Raises UnsupportedError if pagetier caches nothing with this VllmConfig, or vLLM would not start with it."""
    model, attention = config.model_config, getattr(config, "attention_config", None)
    reasons = {
        "the model is a pooling model (--runner pooling)": model.runner_type == "pooling",
        "the model has an encoder and a decoder, for which vLLM has no connectors": model.is_encoder_decoder,
        "vLLM has switched its prefix caching off (--no-enable-prefix-caching)": (
            not config.cache_config.enable_prefix_caching and not _caches_always(config)
        ),
        "--attention-config has hisparse_config": getattr(attention, "hisparse_config", None) is not None,
    }
    if reason := next((reason for reason, excludes in reasons.items() if excludes), ""):
        raise UnsupportedError(reason)
    draft_model_of(config)


def _caches_always(config: Any) -> bool:
    return read_settings(config.kv_transfer_config.kv_connector_extra_config).prefix_caching == "always"
