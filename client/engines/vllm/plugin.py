"""Registers the connector's name. vLLM calls it in each process through the entry point `vllm.general_plugins`."""

from __future__ import annotations

from typing import Final

CONNECTOR: Final = "PagetierConnector"
_MODULE: Final = "pagetier.client.engines.vllm"


def register() -> None:
    """Makes `kv_connector` accept "PagetierConnector" without a module path. May be called repeatedly."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, _MODULE, CONNECTOR)
    except ValueError:  # it is registered already
        return
