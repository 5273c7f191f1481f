"""Copies pages of caches that vLLM allocates itself, in each of its memory orders, with padding and pages of any size.

A CPU has only layers outermost and heads before tokens (LBHNC). GPUs have the others: blocks outermost (BLHNC), where a
block has the pages of all layers, for models with pages of several sizes. They replace the `cross_layers_blocks` of
earlier versions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm.v1.kv_cache_layout", reason="tested from 0.32 on")

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups  # from 0.33 on
except ImportError:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

from pagetier.client import Client
from running_daemon import RunningDaemon
from vllm_caches import HEADS, TOKENS, VllmCache
from vllm_worker_world import ends, load_command, store_command, worker_of

LAYERS, BLOCKS = 3, 24
STORED, LOADED = ((7, 2, 19), (23, 1, 11)), ((3, 22, 4), (8, 17, 5))
"""The blocks of each group."""


def attention(width: int = 8, **further: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=TOKENS, num_kv_heads=HEADS, head_size=width, dtype=torch.bfloat16, **further)


def window(width: int = 8) -> SlidingWindowSpec:
    shape = {"block_size": TOKENS, "num_kv_heads": HEADS, "head_size": width, "dtype": torch.bfloat16}
    return SlidingWindowSpec(sliding_window=3 * TOKENS, **shape)


def state() -> MambaSpec:
    """Returns a state that is smaller than a page of attention, which pads it."""
    shapes, dtypes = ((3, 32), (4, 7, 7)), (torch.bfloat16, torch.float32)
    return MambaSpec(TOKENS, shapes, dtypes, page_size_padded=attention().page_size_bytes, mamba_cache_mode="align")


def latent(width: int = 40, **further: Any) -> MLAAttentionSpec:
    return MLAAttentionSpec(block_size=TOKENS, num_kv_heads=1, head_size=width, dtype=torch.bfloat16, **further)


def each(*specs: KVCacheSpec) -> UniformTypeKVCacheSpecs:
    """Returns a group whose layers have pages of these sizes."""
    return UniformTypeKVCacheSpecs(TOKENS, {f"layer {at}": spec for at, spec in enumerate(specs)})


ANY = tuple(KVCacheLayout)
WHOLE_PAGES = tuple(layout for layout in KVCacheLayout if layout.is_block_compact)
BLOCKS_OUTERMOST = tuple(layout for layout in WHOLE_PAGES if layout.is_block_outermost)
CASES: dict[str, tuple[list[KVCacheSpec], tuple[KVCacheLayout, ...]]] = {
    "attention": ([attention()], ANY),
    "attention and windows": ([attention(), window()], ANY),
    "attention and padded states": ([attention(), state()], WHOLE_PAGES),
    "padded latents": ([latent(alignment=512)], WHOLE_PAGES),
    "latents and an index": ([each(latent(), latent(), latent(12))], WHOLE_PAGES),
    "heads of several sizes": ([each(attention(), attention(24), attention())], WHOLE_PAGES),
    "groups of several sizes": ([attention(), window(24)], BLOCKS_OUTERMOST),
    "blocks at multiples of 512 bytes": ([attention(10, block_stride_alignment=512)], WHOLE_PAGES),
}
"""Groups, and the orders in which vLLM can lay them out."""


class Allocation:
    """All bytes of a cache, and its groups."""

    def __init__(self, specs: list[KVCacheSpec], layout: KVCacheLayout, seed: int, kernel: int = TOKENS) -> None:
        groups = [KVCacheGroupSpec(_names(at, spec), spec) for at, spec in enumerate(specs)]
        cache = SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            prefix_cache_retention_interval=None,
            num_gpu_blocks_override=BLOCKS,
        )
        config = SimpleNamespace(cache_config=cache, attention_config=SimpleNamespace(hisparse_config=None))
        plan = get_kv_cache_config_from_groups(config, groups, 1 << 24)
        tensors = allocate_kv_cache(plan, torch.device("cpu"), layout, [kernel] * len(groups))
        storage = next(iter(tensors.values())).untyped_storage()
        self.bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.bytes.copy_(torch.frombuffer(bytearray(random.Random(seed).randbytes(len(self.bytes))), dtype=torch.uint8))
        self.smaller = TOKENS // kernel
        self.groups = [
            VllmCache(
                group.kv_cache_spec, [tensors[name] for name in group.layer_names], smaller=self._smaller_in(group)
            )
            for group in groups
        ]

    def _smaller_in(self, group: KVCacheGroupSpec) -> int:
        return 1 if isinstance(group.kv_cache_spec, MambaSpec) else self.smaller


def _names(group: int, spec: KVCacheSpec) -> list[str]:
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner) if inner else [f"layer {LAYERS * group + at}" for at in range(LAYERS)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with RunningDaemon("16MiB", "4KiB") as daemon, daemon.client() as attached:
        yield attached


def check_copies(source: Allocation, target: Allocation, client: Client) -> None:
    """Stores blocks of each group, loads them into other blocks, and compares all bytes of the target."""
    salt = token_hex(8)
    expected = target.bytes.clone()
    storing, loading = (worker_of(client, *one.groups, salt=salt) for one in (source, target))
    for at in range(len(source.groups)):
        storing.store([store_command(storing, at, STORED[at])])
        ends(storing)
        loading.load([load_command(loading, client, (at, LOADED[at]))])
        assert not ends(loading).failed
    loaded = target.bytes.clone()
    target.bytes.copy_(expected)
    for at, (one, other) in enumerate(zip(source.groups, target.groups, strict=True)):
        for begin, end in zip(STORED[at], LOADED[at], strict=True):
            for ours, theirs in zip(one.layers, other.layers, strict=True):
                place = slice(end * other.smaller, (end + 1) * other.smaller)
                theirs[place] = ours[begin * one.smaller : (begin + 1) * one.smaller]
    assert torch.equal(loaded, target.bytes)


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name, (_, layouts) in CASES.items() for layout in layouts]
)
def test_pages_of_each_layout_are_copied(name: str, layout: KVCacheLayout, client: Client) -> None:
    specs, _ = CASES[name]
    check_copies(Allocation(specs, layout, 1), Allocation(specs, layout, 2), client)


@pytest.mark.parametrize("layout", [KVCacheLayout.LBHNC, KVCacheLayout.LBNHC])
def test_pages_of_kernels_with_smaller_blocks_are_copied(layout: KVCacheLayout, client: Client) -> None:
    specs, smaller = [attention(), window()], TOKENS // 2
    check_copies(Allocation(specs, layout, 1, smaller), Allocation(specs, layout, 2, smaller), client)


@pytest.mark.parametrize("name", CASES)
def test_engines_with_several_layouts_share_pages(name: str, client: Client) -> None:
    """A page has the same bytes in each layout."""
    specs, layouts = CASES[name]
    check_copies(Allocation(specs, layouts[0], 1), Allocation(specs, layouts[-1], 2), client)
