"""The loads of SGLang's linker on a device with streams: the model's work waits for its layers, and no thread does."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from eventually import PATIENCE_S
from pagetier.client import Client, RegisteredCache
from pagetier.client.engines.sglang.linker.loads import GroupPages, LayerCounter, LoadingBatch, QueuedLoad
from pagetier.client.engines.sglang.linker.lookups import Hit
from pagetier.client.engines.sglang.pools.engine_groups import EngineGroup
from running_daemon import RunningDaemon

LAYERS, BLOCKS, TOKENS, PAGES = 2, 16, 16, 4
_HASHES = b"".join(sha256(b"%d" % page).digest() for page in range(PAGES))


def cache_of(client: Client, seed: int) -> tuple[Any, RegisteredCache]:
    """Returns the tensors and the cache of an engine."""
    shape = (2, LAYERS, BLOCKS, TOKENS, 2, 8)
    tensors = np.random.default_rng(seed).integers(0, 2**16, shape, dtype=np.uint16)
    return tensors, client.register(
        [list(part) for part in tensors], layout="separate_blocks", model="test", page_tokens=TOKENS
    )


def group_of(cache: RegisteredCache) -> EngineGroup:
    """Returns the group of layers 1 and 3 of the model."""
    return EngineGroup("kv", cache.group, {1: 0, 3: 1}, TOKENS)


@pytest.mark.parametrize("fails", [False, True])
def test_the_models_stream_waits_for_each_layer(daemon: RunningDaemon, fails: bool) -> None:
    blocks = [3, 9, 1, 12]
    with daemon.client() as client, ThreadPoolExecutor(1) as stream:
        stored, cache = cache_of(client, 1)
        keys = group_of(cache).keys(_HASHES)
        assert not cache.store(keys, range(PAGES)).refused
        tensors, cache = cache_of(client, 2)
        match, after, counter = client.match(keys), Future[None](), LayerCounter()
        batch = LoadingBatch(lambda: stream)
        batch.begin([group_of(cache)], [QueuedLoad(Hit(PAGES, (match,)), (GroupPages(match, blocks),))], after)
        assert not match.pinned, "the load has pins of its own"
        index = counter.begin(batch)
        counter.set_consumer(index)
        counter.wait_until(0)
        assert stream.submit(int).result(PATIENCE_S) == 0, "layer 0 of the model is in no group"
        counter.wait_until(1)
        first = stream.submit(lambda: tensors[:, 0][:, blocks])
        counter.wait_until(3)
        second = stream.submit(lambda: tensors[:, 1][:, blocks])
        assert not wait([first, second], 0.3).done, "the slots may still be written by the model"
        if fails:
            after.set_exception(OSError("the engine's own error"))
        else:
            after.set_result(None)
        read = [future.result(PATIENCE_S) for future in (first, second)]
        assert counter.finish(index) is not fails
        assert counter.finish(index), "a batch is finished once"
        assert fails or all(np.array_equal(read[at], stored[:, at][:, :PAGES]) for at in range(LAYERS))
