"""Copies pages of caches that vLLM allocates itself, in each of its memory orders, with padding and pages of any size.

Groups are those that vLLM plans for model families (model_families.py), and some that have one property each.
A CPU has only layers outermost and heads before tokens (LBHNC). GPUs have the others: blocks outermost (BLHNC), where a
block has the pages of all layers, for models with pages of several sizes. They replace the `cross_layers_blocks` of
earlier versions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
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

from model_families import FAMILIES, accepted_layouts, planned_groups
from pagetier.client import Client
from pagetier.client.engines.vllm.kv_tensors import paged_cache
from running_daemon import RunningDaemon
from vllm_caches import HEADS, TOKENS, VllmCache
from vllm_worker_world import WHOLE, ends, load_command, store_command, worker_of

LAYERS, BLOCKS, PAGES = 3, 48, 3


def blocks_of_groups(seed: int) -> list[tuple[int, ...]]:
    """Returns the blocks of each group. Groups share their memory, so that no block is in two of them."""
    chosen = random.Random(seed).sample(range(1, BLOCKS), (BLOCKS - 1) // PAGES * PAGES)
    return [tuple(chosen[at : at + PAGES]) for at in range(0, len(chosen), PAGES)]


STORED, LOADED = blocks_of_groups(1), blocks_of_groups(2)


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
    "a state for eight tokens": ([attention(tokens_per_state=8)], ANY),
    "several states for a token": ([attention(tokens_per_state=Fraction(1, 4))], ANY),
    "NVFP4, slots of K and V": ([attention(num_head_slots=2 * HEADS, state_content_bytes=72)], ANY),
    "shuffled, one slot of all K": ([attention(num_head_slots=2, state_content_bytes=HEADS * 16)], ANY),
    "blocks at multiples of 512 bytes": ([attention(10, block_stride_alignment=512)], WHOLE_PAGES),
}
"""Groups, and the orders in which vLLM can lay them out."""
OF_A_LAYOUT = tuple(name for name in CASES if "state for" in name or "states for" in name or "slot" in name)
"""Groups whose pages have other bytes in each order of heads and tokens, which engines therefore do not share."""


class Allocation:
    """All bytes of a cache, and its groups."""

    def __init__(
        self, groups: list[KVCacheGroupSpec], layout: KVCacheLayout, seed: int, kernel: int | None = None
    ) -> None:
        cache = SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: layout,
            prefix_cache_retention_interval=None,
            num_gpu_blocks_override=BLOCKS,
        )
        config = SimpleNamespace(cache_config=cache, attention_config=SimpleNamespace(hisparse_config=None))
        plan = get_kv_cache_config_from_groups(config, groups, 1 << 24)
        tensors = allocate_kv_cache(
            plan, torch.device("cpu"), layout, None if kernel is None else [kernel] * len(groups)
        )
        storage = next(iter(tensors.values())).untyped_storage()
        self.bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.bytes.copy_(torch.frombuffer(bytearray(random.Random(seed).randbytes(len(self.bytes))), dtype=torch.uint8))
        smaller = 1 if kernel is None else TOKENS // kernel
        self.groups = [
            VllmCache(groups[at].kv_cache_spec, [tensors[name] for name in groups[at].layer_names], smaller=smaller)
            for at in plan.prefix_cacheable_group_ids
        ]


def groups_of(specs: list[KVCacheSpec]) -> list[KVCacheGroupSpec]:
    return [KVCacheGroupSpec(_names(at, spec), spec) for at, spec in enumerate(specs)]


def _names(group: int, spec: KVCacheSpec) -> list[str]:
    inner = getattr(spec, "kv_cache_specs", None)
    return list(inner) if inner else [f"layer {LAYERS * group + at}" for at in range(LAYERS)]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with RunningDaemon("16MiB", "4KiB") as daemon, daemon.client() as attached:
        yield attached


def check_copies(source: Allocation, target: Allocation, client: Client, forgotten: int | None = None) -> None:
    """Stores blocks of each group, loads them into other blocks, and compares all bytes of the target.

    The layer `forgotten` of the first group is not copied.
    """
    salt = token_hex(8)
    expected = target.bytes.clone()
    storing, loading = (worker_of(client, *_copied(one, forgotten), salt=salt) for one in (source, target))
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


def _copied(allocation: Allocation, forgotten: int | None) -> list[VllmCache]:
    first, *others = allocation.groups
    if forgotten is None:
        return [first, *others]
    specs = list(first.spec.kv_cache_specs.items())
    del specs[forgotten]
    spec = UniformTypeKVCacheSpecs(first.spec.block_size, dict(specs))
    return [VllmCache(spec, [one for at, one in enumerate(first.layers) if at != forgotten]), *others]


@pytest.mark.parametrize(
    ("name", "layout"), [(name, layout) for name, (_, layouts) in CASES.items() for layout in layouts]
)
def test_pages_of_each_layout_are_copied(name: str, layout: KVCacheLayout, client: Client) -> None:
    specs, _ = CASES[name]
    check_copies(Allocation(groups_of(specs), layout, 1), Allocation(groups_of(specs), layout, 2), client)


EACH_FAMILY = [(family, layout) for family in FAMILIES for layout in accepted_layouts(family)]


@pytest.mark.parametrize(("family", "layout"), EACH_FAMILY)
def test_the_groups_of_a_family_are_copied_in_each_layout(family: str, layout: KVCacheLayout, client: Client) -> None:
    """Of buffers of a request and of windows that are replayed, no byte is written."""
    groups = planned_groups(FAMILIES[family](1), layout)
    check_copies(Allocation(groups, layout, 1), Allocation(groups, layout, 2), client)


@pytest.mark.parametrize("family", ["DeepSeek V3.2, GLM-5", "DeepSeek V4.1", "MiniMax-M3"])
@pytest.mark.parametrize("layer", [0, 1])
def test_a_forgotten_buffer_is_noticed(family: str, layer: int, client: Client) -> None:
    groups, layout = planned_groups(FAMILIES[family](1)), KVCacheLayout.BLHNC
    source, target = Allocation(groups, layout, 1), Allocation(groups, layout, 2)
    with pytest.raises(AssertionError):
        check_copies(source, target, client, forgotten=layer)


@pytest.mark.parametrize("family", ["DeepSeek V3.2, GLM-5", "DeepSeek V4", "DeepSeek V4.1", "GLM-5-next", "MiniMax-M3"])
def test_engines_with_several_layouts_share_pages_of_a_family(family: str, client: Client) -> None:
    """Only where K and V of several heads are beside states of several tokens, a page is that of its layout."""
    layouts = accepted_layouts(family)
    one, other = (
        Allocation(planned_groups(FAMILIES[family](1), layout), layout, seed)
        for seed, layout in ((1, layouts[0]), (2, layouts[-1]))
    )
    check_copies(one, other, client)


@pytest.mark.parametrize("layout", [KVCacheLayout.LBHNC, KVCacheLayout.LBNHC])
def test_pages_of_kernels_with_smaller_blocks_are_copied(layout: KVCacheLayout, client: Client) -> None:
    specs, smaller = [attention(), window()], TOKENS // 2
    one, other = (Allocation(groups_of(specs), layout, seed, smaller) for seed in (1, 2))
    check_copies(one, other, client)


@pytest.mark.parametrize("name", [name for name in CASES if name not in OF_A_LAYOUT])
def test_engines_with_several_layouts_share_pages(name: str, client: Client) -> None:
    """A page has the same bytes in each layout."""
    specs, layouts = CASES[name]
    check_copies(Allocation(groups_of(specs), layouts[0], 1), Allocation(groups_of(specs), layouts[-1], 2), client)


@pytest.mark.parametrize("name", OF_A_LAYOUT)
def test_pages_that_differ_by_layout_are_not_shared(name: str) -> None:
    specs, _ = CASES[name]
    layouts = [
        paged_cache(one.groups[0].layers, specs[0], WHOLE, HEADS, TOKENS).page.layout
        for one in (Allocation(groups_of(specs), layout, 1) for layout in (KVCacheLayout.LBHNC, KVCacheLayout.LBNHC))
    ]
    assert len(set(layouts)) == 2
