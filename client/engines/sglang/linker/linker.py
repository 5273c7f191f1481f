"""The external linker of SGLang's radix cache: what SGLang's GPU pools lack is in the shared arena.

SGLang calls all methods on its scheduler's thread, and the counter on the thread that runs the model. All ranks must
return the same from load() and offload(), or their batches differ. A request passes through these steps:

1. `lookup`: pages are pinned under a lease. A load that fails ends the requests of its batch, so that nothing may be
   promised that can be evicted.
2. `load`: the request has got slots. Its load is queued only if all ranks have all of its pages. The pins go from the
   lease to the queue.
3. `start_layer_wise_loading`: one copy for each group loads all requests of the batch, first layers first. It begins
   after the model's work so far, which may still use the slots. From here on the copies have pins of their own.
4. The model waits for each layer before it uses it (`LayerCounter`).
5. `finish_layer_wise_loading`: nothing is written any more. If a page was not loaded, SGLang aborts the batch.
6. `offload`: pages of a node of SGLang's tree are stored after the model's work so far. SGLang keeps their slots until
   it has taken the result by `pop_completed_offload`, in the order of the calls.

`cancel_queued_load` ends a request between 2 and 3. `reset` ends all of them, before SGLang reuses its memory.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker

from pagetier.client.engines.sglang.engine.batch_times import ReportsBatches
from pagetier.client.engines.sglang.linker.loads import LayerCounter
from pagetier.client.engines.sglang.linker.transfers import Transfers
from pagetier.client.engines.sglang.pools.device_pools import STATE
from pagetier.client.engines.unsupported import log_unsupported

log = logging.getLogger("pagetier.sglang")


class PagetierLinker(UnifiedCacheLinker, ReportsBatches):
    """Connects one rank of SGLang with pagetier. SGLang makes it.

    An engine that is not supported is served without a cache: one line in the log says why.

    Attributes:
        layer_done_counter: See LayerCounter.
        pools: The pools that are cached.
        forward_stream: The stream on which the model writes its caches.
        transfers: All transfers; None if this engine is not supported.
    """

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any = None,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        self.forward_stream = forward_stream
        self.layer_done_counter = LayerCounter()
        self.pools: dict[PoolName, Any] = {}
        self.transfers: Transfers | None = None
        try:
            # may fail with another version of SGLang
            from pagetier.client.engines.sglang.linker.setup import LinkerParts, open_transfers

            parts = LinkerParts(server_args, params, components, self.layer_done_counter, forward_stream)
            transfers, pools = open_transfers(parts, extra_config or {})
        except Exception as error:  # noqa: BLE001  SGLang serves without a cache
            log_unsupported(log, error)
            return
        self.transfers = transfers
        self.pools = {PoolName(pool.name): pool.pool for pool in pools}
        if PoolName(STATE) in self.pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        """Returns the lengths in pages that can be restored."""
        return self.transfers.lookup(rid, transfers) if self.transfers else []

    def load(self, rid: str, transfers: list[Any]) -> bool:
        """Queues a load. Returns False on all ranks if one of them cannot load all pages."""
        return self.transfers is not None and self.transfers.load(rid, transfers)

    def start_layer_wise_loading(self) -> int:
        """Begins the queued loads."""
        return self.transfers.start() if self.transfers else -1

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Waits until a batch writes nothing any more, and returns whether all of its pages were loaded."""
        return self.layer_done_counter.finish(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        """Removes a load that has not begun."""
        return self.transfers is not None and self.transfers.cancel(rid)

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        """Begins to store pages. Returns False only if this engine is not supported."""
        if self.transfers is None:
            return False
        self.transfers.offload(transfers)
        return True

    def num_completed_offloads(self) -> int:
        """Returns the number of results that pop_completed_offload() can return."""
        return self.transfers.completed() if self.transfers else 0

    def pop_completed_offload(self) -> bool:
        """Returns whether the pages of the oldest offload are stored."""
        return self.transfers is not None and self.transfers.pop()

    def batch_ended(self, batch: Any) -> None:
        """Implements ReportsBatches."""
        if self.transfers is not None:
            self.transfers.batch_ended(batch)

    def reset(self) -> None:
        """Ends all transfers. SGLang calls it to empty its own cache; pages in pagetier stay."""
        if self.transfers is not None:
            self.transfers.reset()

    def close(self) -> None:
        """Ends all transfers and leaves the daemon."""
        if self.transfers is not None:
            self.transfers.close()
