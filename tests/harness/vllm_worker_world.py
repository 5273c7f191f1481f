"""The worker's half of the vLLM connector over torch tensors, and its commands."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eventually import eventually
from pagetier.client import Client
from pagetier.client.async_copy.copier import open_copier
from pagetier.client.engines.vllm.kv_tensors import paged_cache
from pagetier.client.engines.vllm.messages import Finished, GroupLoad, LoadCommand, StoreCommand
from pagetier.client.engines.vllm.worker import RankGroup, WorkerHalf, Zeroing
from pagetier.client.keys import Keys, Namespace
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.layout.page_layout import Shard
from vllm_caches import HEADS, VllmCache

COPYING = CopySettings(reserve_timeout=30.0, queue_limit=30.0)  # no page is rejected on a busy machine
WHOLE = Shard(0, 1)


def worker_of(
    client: Client,
    *caches: VllmCache,
    salt: str,
    settings: CopySettings = COPYING,
    shard: Shard = WHOLE,
    zeroing: Zeroing = Zeroing.AFTER_STORES_END,
    first: int = 0,
    contexts: int = 1,
) -> WorkerHalf:
    """Returns the half of a rank. `contexts` is the number of ranks that divide the tokens of a page."""
    lanes = []
    for at, cache in enumerate(caches):
        tokens = contexts * cache.spec.block_size
        paged = paged_cache(cache.layers, cache.spec, shard, HEADS, tokens)
        space = Namespace(
            model="test", dtype="any", page_tokens=tokens, group=str(first + at), layout=paged.page.layout, salt=salt
        )
        lanes.append(RankGroup(paged, space, open_copier(client, paged, settings)))
    return WorkerHalf(client, lanes, lambda: None, zeroing, first)


def keys_of(worker: WorkerHalf, group: int, pages: int, prompt: int = 0) -> Keys:
    space = worker.rank_groups[group].namespace
    return space.keys(range(prompt << 20, (prompt << 20) + pages * space.page_tokens))


def store_command(
    worker: WorkerHalf, group: int, blocks: Sequence[int], *, held: bool = False, prompt: int = 0
) -> StoreCommand:
    keys = keys_of(worker, group, len(blocks), prompt)
    return StoreCommand("storing", group, 0, keys.data, tuple(blocks), keys.namespace.salt, held)


def load_command(worker: WorkerHalf, client: Client, *wanted: tuple[int, Sequence[int]]) -> LoadCommand:
    groups = []
    for group, blocks in wanted:
        with client.match(keys_of(worker, group, len(blocks))) as match:
            groups.append(GroupLoad(group, match.to_handle(), tuple(blocks)))
    return LoadCommand("loading", tuple(groups))


def ends(worker: WorkerHalf) -> Finished:
    """Returns everything that has ended, once nothing is in progress."""
    finished: list[Finished] = []

    def quiet() -> bool:
        finished.append(worker.finished(True))
        return not worker._storing and not worker._loading

    assert eventually(quiet)
    return Finished(
        frozenset().union(*(one.stored for one in finished)),
        frozenset().union(*(one.loaded for one in finished)),
        frozenset().union(*(one.failed for one in finished)),
        frozenset().union(*(one.blocks for one in finished)),
        {name: seconds for one in finished for name, seconds in one.copied.items()},
    )


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def slow_of(cache: VllmCache, client: Client, pages: int) -> CopySettings:
    """Limits stores and loads to `pages` pages a second, one at a time."""
    nbytes = worker_of(client, cache, salt="size").rank_groups[0].cache.page.nbytes
    return CopySettings(chunk=nbytes, depth=1, store_bandwidth=pages * nbytes, load_bandwidth=pages * nbytes)
