"""The heads of a model may be given by the kind of a plane: ranks divide K and V, and have an index alike."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from eventually import PATIENCE_S
from pagetier.client import CacheGroup, FullAttention, RegisteredGroups
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.cache_layout import joined
from running_daemon import RunningDaemon

BLOCKS, PAGE, PAGES, RANKS = 12, 16, 4, 2
WRITTEN, READ = np.arange(PAGES), np.arange(BLOCKS - PAGES, BLOCKS)


def test_each_rank_has_its_heads_and_the_whole_index(daemon: RunningDaemon) -> None:
    random, model = np.random.default_rng(1), os.urandom(8).hex()
    keys, values = random.integers(0, 2**16, (2, BLOCKS, PAGE, RANKS, 8), np.uint16)
    index = random.integers(0, 2**16, (BLOCKS, PAGE, 4), np.uint16)
    with daemon.client(timeout=PATIENCE_S) as one, daemon.client(timeout=PATIENCE_S) as other:
        own: list[list[Any]] = []
        caches: list[RegisteredGroups] = []
        for rank, client in enumerate((one, other)):
            heads = slice(rank, rank + 1)
            own.append([keys[:, :, heads].copy(), values[:, :, heads].copy(), index.copy()])
            layout = joined(
                engine_layouts.separate_blocks([own[rank][0]], [own[rank][1]]), engine_layouts.latents([own[rank][2]])
            )
            group = CacheGroup(kv_caches=layout, kind=FullAttention(PAGE), num_kv_heads={"k": RANKS, "v": RANKS})
            caches.append(client.register(groups=[group], model=model, tp_rank=rank, tp_size=RANKS))
        for cache in caches:
            cache.store(range(PAGE * PAGES), [WRITTEN])
        wanted = [[tensor.copy() for tensor in tensors] for tensors in own]
        for cache, tensors, its in zip(caches, own, wanted, strict=True):
            with cache.match(range(PAGE * PAGES)) as hit:
                assert cache.load(hit, [READ], strict=True) == PAGE * PAGES
            for tensor, expected in zip(tensors, its, strict=True):
                expected[READ] = expected[WRITTEN]
                assert np.array_equal(tensor, expected)
