"""What vLLM calls in each of its processes, by the entry point `vllm.general_plugins`: it makes our name known."""

from __future__ import annotations

from typing import Final

CONNECTOR: Final = "PagetierConnector"
_MODULE: Final = "pagetier.client.engines.vllm"


def register() -> None:
    """Lets `kv_connector` be "PagetierConnector" without a module path. May be called again."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    try:
        KVConnectorFactory.register_connector(CONNECTOR, _MODULE, CONNECTOR)
    except ValueError:  # it is known already
        return
