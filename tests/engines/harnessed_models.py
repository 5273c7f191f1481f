"""Models of layer groups for HarnessedEngine, and what is checked at the end of each test with one."""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from eventually import eventually
from harnessed_scheduler import BLOCK, BY_REQUEST, VERSION, HarnessedEngine
from pagetier.client import Client
from running_daemon import RunningDaemon
from vllm_harness import harness

FAMILY_NAMES: tuple[str, ...] = ()
with suppress(pytest.skip.Exception):  # before 0.32
    import model_families

    FAMILY_NAMES = tuple(model_families.FAMILIES)

HYBRID = ("window", "recurrent", "chunks", "all")
EVERY_STATE = ("every state",) if VERSION < (0, 33) else ()  # with --mamba-cache-mode all
MODELS: tuple[str, ...] = ("full", *HYBRID, *EVERY_STATE) if BY_REQUEST else ("full",)
ALONE = ("windows only", "recurrent only") if BY_REQUEST else ()
"""Two groups with a window of little more than a page, and states."""
LONGER = ("longer pages",) if BY_REQUEST else ()
"""A model of all kinds, whose windows have shorter pages than the rest."""
WIDE = "wide window"
"""A model of full attention whose windows have shorter pages, and are wider than its prompts."""
DRAFTED = ("draft", "draft window") if BY_REQUEST else ()
"""Models with a draft model of full attention, or with a window, in the last group."""
PIPELINE = {"pipeline_parallel_size": 2}
CONTEXT = {"tensor_parallel_size": 4, "decode_context_parallel_size": 2}
PROMPTS = {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2}
"""Of latent attention only, which to the scheduler is a group of full attention."""


def groups_of(model: str, blocks: int = 1000) -> Any:
    if model == "full":
        return None
    if model in FAMILY_NAMES:
        return model_families.scheduler_groups(model, blocks)
    groups = harness().make_kv_cache_config(
        BLOCK,
        swa_enabled=model in ("window", "windows only", "all", "longer pages", "draft window", WIDE),
        mamba_enabled=model in ("recurrent", "recurrent only", "every state", "all", "longer pages"),
        sw_size={"windows only": BLOCK + 1, WIDE: 16 * BLOCK}.get(model, 3 * BLOCK),
        num_blocks=blocks,
        mamba_cache_mode="all" if model == "every state" else "align",
    )
    if model == "chunks":
        groups.kv_cache_groups.append(_chunked())
    if model in ALONE:
        del groups.kv_cache_groups[0]
    if model == "windows only":
        groups.kv_cache_groups.append(replace(groups.kv_cache_groups[0], layer_names=["layer5", "layer7"]))
    if model in (*LONGER, WIDE):
        for group in groups.kv_cache_groups[::2]:
            group.kv_cache_spec = replace(group.kv_cache_spec, block_size=2 * BLOCK)
    groups.kv_cache_groups[-1].is_eagle_group = model in DRAFTED
    return groups


def hash_tokens(family: str) -> int:
    """Returns the tokens of a block hash, as vLLM chooses them for a family."""
    groups = model_families.scheduler_groups(family, 1)
    numbers = groups.prefix_cacheable_group_ids
    return math.gcd(*(groups.kv_cache_groups[number].kv_cache_spec.block_size for number in numbers))


def _chunked() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, KVCacheGroupSpec

    heads = {"num_kv_heads": 4, "head_size": 16, "dtype": torch.float16}
    spec = ChunkedLocalAttentionSpec(block_size=BLOCK, attention_chunk_size=4 * BLOCK, **heads)
    return KVCacheGroupSpec(["layer1", "layer3"], spec)


def engine_of(
    model: str, daemon: RunningDaemon, client: Client, blocks: int = 1000, **settings: Any
) -> HarnessedEngine:
    settings.setdefault("salt", random.randbytes(8).hex())
    if model in FAMILY_NAMES:
        settings.setdefault("hashed", hash_tokens(model))
    return HarnessedEngine(daemon, client, groups_of(model, blocks), blocks=blocks, **settings)


def assert_nothing_is_left(engine: HarnessedEngine, daemon: RunningDaemon) -> None:
    assert_engine_keeps_nothing(engine, daemon)
    assert eventually(lambda: not daemon.header().open_entries)


def assert_engine_keeps_nothing(engine: HarnessedEngine, daemon: RunningDaemon) -> None:
    """Closes the engine. The daemon may still read pages that no request waits for."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.null_block.ref_cnt = 0  # vLLM increments it and never decrements it
    harness().assert_scheduler_empty(engine.scheduler)
    assert pool.get_num_free_blocks() == engine.blocks - 1
    assert not engine.half._tracked and not len(engine.half._arriving) and not len(engine.half.loaded_first)
    assert len(engine.half.gpu_pages or ()) < engine.blocks
    assert not any(slot.pins for slot in daemon.slots() if slot.name != "disk tier")
    engine.scheduler.shutdown()


def keys_of(engine: HarnessedEngine, request: Any, at: int) -> Any:
    from pagetier.client.group_match import GroupKeys

    group = engine.groups[at]
    return GroupKeys(group.kind, group.keys(request.block_hashes[group.hashes - 1 :: group.hashes]))


def aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED
