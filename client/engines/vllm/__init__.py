"""vLLM: one flag, and all engines of the host share one cache.

    --kv-transfer-config '{"kv_connector": "PagetierConnector", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute"}'

The scheduler's process (scheduler, orders) decides what is loaded and stored, the workers (worker, tensors) copy; only
orders go from one to the other, and once, at start, what a page of each group is. Nothing but connector, metadata and
metrics knows vLLM's modules: what is read of its objects is recognised by what they have, as they change between
versions.
"""

from .connector import PagetierConnector

__all__ = ["PagetierConnector"]
