"""A connector for vLLM: one variable or one option, and all engines of the host share one cache.

    PAGETIER=1
    --kv-transfer-config '{"kv_connector": "PagetierConnector", "kv_role": "kv_both"}'

The scheduler's process decides which pages are loaded and stored (scheduler.py), and the workers copy them (worker.py).
A request is followed by request_state.py, a load begins in load_planner.py, and a store in store_planner.py or, with
`"store": "on_eviction"`, in gpu_pages.py. Only commands (messages.py) go from the scheduler to the workers; once, at
start, the workers send the shape of a page of each group.

Only connector.py, connector_metadata.py, metrics.py, events.py and plugin.py import vLLM. The other modules recognise
vLLM's objects by their attributes, which change between versions, so that they can be imported and tested without vLLM.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagetier.client.engines.vllm.connector import PagetierConnector

__all__ = ["PagetierConnector"]


def __getattr__(name: str) -> Any:
    """Returns the connector, and imports vLLM only when it is requested.

    Raises:
        AttributeError: The module has no such attribute.
    """
    if name != "PagetierConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pagetier.client.engines.vllm.connector import PagetierConnector

    return PagetierConnector
