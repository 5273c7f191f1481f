"""vLLM: one flag, and all engines of the host share one cache.

    --kv-transfer-config '{"kv_connector": "PagetierConnector", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

The scheduler's process (scheduler, orders) decides what is loaded and stored, the workers (worker, tensors) copy; only
orders go from one to the other, and once, at start, what a page of each group is. Nothing but connector, metadata,
metrics and announcing knows vLLM's modules: what is read of its objects is recognised by what they have, as they
change between versions. So the rest can be imported, and tested, without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagetier.client.engines.vllm.connector import PagetierConnector

__all__ = ["PagetierConnector"]


def __getattr__(name: str) -> Any:
    """The connector, and with it vLLM, is imported by who asks for it."""
    if name != "PagetierConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pagetier.client.engines.vllm.connector import PagetierConnector

    return PagetierConnector
