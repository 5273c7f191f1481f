"""The host pools of SGLang's HiCache as groups, made as SGLang makes them: sparse attention and DeepSeek V4."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pagetier.client.engines.sglang.engine.namespace import EngineFacts
from pagetier.client.engines.sglang.engine.served_engine import ServedEngine
from pagetier.client.engines.sglang.pools.device_pools import DevicePool
from pagetier.client.engines.sglang.pools.host_pools import host_pools
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.registration import paged_cache_of
from pagetier.kernels.layout.page_layout import Shard
from pagetier.kernels.layout.transfer import PagedCache

PAGE, LATENT, KEY = 64, 656, 132  # DeepSeek V3.2 in FP8
LAYOUTS = ("layer_first", "page_first", "page_first_direct")


class Pool(SimpleNamespace):
    pass


class DSATokenToKVPool(Pool):
    pass


class MLATokenToKVPoolHost(Pool):
    pass


class DSAIndexerPoolHost(Pool):
    pass


class LogicalHostPool(Pool):
    pass


class DeepSeekV4PagedHostPool(Pool):
    pass


def sparse(layout: str, layers: int, keyed: int, pages: int = 2) -> dict[str, Any]:
    """Returns the host pools of sparse attention, of whose layers `keyed` have index keys; a page more of these."""
    latents = {
        "layer_first": (layers, pages * PAGE, 1, LATENT),
        "page_first": (pages * PAGE, layers, 1, LATENT),
        "page_first_direct": (pages, layers, PAGE, 1, LATENT),
    }
    keys = (keyed, pages + 1, PAGE * KEY) if layout == "layer_first" else (pages + 1, keyed, 1, PAGE * KEY)
    common = {"layout": layout, "page_size": PAGE, "dtype": torch.uint8}
    buffer = torch.zeros(latents[layout], dtype=torch.uint8)
    index = torch.zeros(keys, dtype=torch.uint8)
    return {
        "kv": MLATokenToKVPoolHost(kv_buffer=buffer, layer_num=layers, **common),
        "indexer": DSAIndexerPoolHost(
            index_k_with_scale_buffer=index, layer_num=keyed, device_pool=DSATokenToKVPool(), **common
        ),
    }


def described(pools: dict[str, Any]) -> tuple[tuple[DevicePool, ...], list[PagedCache]]:
    groups = host_pools(pools, PAGE, lambda _: 1)
    return groups, [paged_cache_of(pool.group, Shard()) for pool in groups]


def test_the_pages_of_deepseek_v32_fill_their_frames() -> None:
    """SGLang has no other page size for it. Nothing would be advised for other models, either."""
    other: Any = SimpleNamespace(hf_config=None)
    pools, paged = described(sparse("page_first", 61, 61))
    assert [own.page.nbytes for own in paged] == [61 * PAGE * (LATENT + KEY)]
    assert ServedEngine(EngineFacts("0", other, None, None), pools, paged)._waste == ""


@pytest.mark.parametrize("keyed", [1, 3])
def test_index_keys_are_a_part_of_pages_that_all_layouts_share(keyed: int) -> None:
    """A layer without index keys of its own has none on the host."""
    pages = [described(sparse(layout, 3, keyed))[1] for layout in LAYOUTS]
    assert {own.page.nbytes for (own,) in pages} == {PAGE * (3 * LATENT + keyed * KEY)}
    assert len({own.page.layout for (own,) in pages}) == 1
    assert {own.cache.blocks for (own,) in pages} == {2}


def test_index_keys_of_more_layers_than_there_are_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the host pools indexer of HiCache are not known"):
        host_pools(sparse("page_first", 2, 3), PAGE, lambda _: 1)


def test_a_stage_of_deepseek_v4_with_windows_alone_says_what_to_do() -> None:
    windows = DeepSeekV4PagedHostPool(page_size=PAGE, layout="page_first", page_aligned_only=False)
    with pytest.raises(UnsupportedError, match="set SGLANG_PP_LAYER_PARTITION so that each stage has some"):
        host_pools({"kv": LogicalHostPool(), "swa": windows}, PAGE, lambda _: 1)


@pytest.mark.parametrize("change", [{"page_aligned_only": True}, {"page_size": 2 * PAGE}, {"layout": "page_head"}])
def test_rows_of_deepseek_v4_whose_format_no_width_tells_are_refused(change: dict[str, Any]) -> None:
    windows = DeepSeekV4PagedHostPool(
        **{"page_size": PAGE, "layout": "page_first", "page_aligned_only": False} | change
    )
    with pytest.raises(UnsupportedError, match="the host pools swa of HiCache are not known"):
        host_pools({"kv": LogicalHostPool(), "swa": windows}, PAGE, lambda _: 1)
