"""Changes of one rank before its linker is made: engines that are not supported, other formats, plugins, mutants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final
from unittest.mock import patch

import msgspec
import torch
from sglang import version
from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout
from sglang.srt.mem_cache.deepseek_v4_compress_state import KVAndScore
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType
from sglang.srt.runtime_context import get_parallel

from pagetier.client.engines.sglang.pools import device_pools, host_pools, row_pools
from pagetier.kernels.layout.cache_layout import cache_of

_CHANGES: Final[Mapping[str, Callable[[Any, Any], object]]] = {
    "version": lambda _, __: setattr(version, "__version__", "9.9"),
    "pool": lambda _, pool: setattr(pool, "__class__", type("UnknownPool", (type(pool),), {})),
    "pipeline": lambda params, _: setattr(params, "pp_size", 2),
    "decode": lambda _, __: get_parallel().override_permanently(attn_dcp_size=2),
    "draft": lambda params, _: setattr(params, "mtp_draft_mamba_pools", (object(),)),
    "layout": lambda _, pool: setattr(pool, "kv_cache_layout", "vectorized_5d"),
    "scales": lambda _, pool: setattr(pool, "native_k_scale_buffer", [object()]),
    "checkpoints": lambda params, _: vars(params.req_to_token_pool).update(mamba_pool=None, mamba_ckpt_pool=object()),
    "index_kpool": lambda _, pool: setattr(pool, "index_kpool", 2),
    "index_k_page8": lambda _, pool: setattr(pool.c4_indexer_kv_pool, "index_k_page8", True),
    "index_k_rne": lambda _, pool: setattr(pool.c4_indexer_kv_pool, "index_k_rne", True),
    "use_fp4_indexer": lambda _, pool: setattr(pool.c4_indexer_kv_pool, "use_fp4_indexer", True),
    "kv_layout": lambda _, pool: setattr(pool.c4_kv_pool, "kv_layout", KVLayout.V41),
    "rings of states": lambda _, pool: _change_states(pool, lambda rows: rows.view(-1, rows.shape[1] // 2), 2),
    "type of states": lambda _, pool: _change_states(pool, lambda rows: rows.view(torch.int32), 1),
    "kv_layout of windows": lambda _, pool: setattr(pool.swa_kv_pool, "kv_layout", KVLayout.V41),
}


def change(what: str, params: Any) -> None:
    """Makes a change to SGLang's CacheInitParams or its pool, or loads the plugins that `what` names."""
    if what in _CHANGES:
        _CHANGES[what](params, params.token_to_kv_pool_allocator.get_kvcache())
    else:
        _load(what)


def _change_states(pool: Any, view: Callable[[torch.Tensor], torch.Tensor], factor: int) -> None:
    """Shows the states of DeepSeek V4 in another form, in rings of so many times their length."""
    for states in (*pool.compress_state_pools, *pool.indexer_compress_state_pools):
        if states is not None:
            states.kv_score_buffer = KVAndScore(view(states.kv_score_buffer.kv_score))
            states.ring_size *= factor


def forget(name: str) -> None:
    """Makes pagetier forget something: a physical buffer, a stage, a share of a rank, or that it refuses pipelines.

    A buffer is an entry of SGLang's, a kind of plane, "draft" for packed drafts, "index" for the index keys of DSA in a
    hybrid model, "index of the host" for those of HiCache, "host NAME" for a host pool of DeepSeek V4, or "state" for
    the last of the recurrent states.
    """
    match name:
        case "tokens" | "layers":
            _forget_share(name)
        case "stage":
            from pagetier.client.engines.sglang.engine import model  # it has the version of SGLang

            patch.object(model, "stage_of", lambda facts, _: facts).start()
        case "pipelines":
            patch("pagetier.client.engines.sglang.linker.setup.require_known", lambda _: None).start()
        case "state":
            _forget_state()
        case "index of the host":
            patch.object(host_pools, "_index_keys", lambda _: []).start()
        case _ if name.startswith("host "):
            _forget_host_pool(name.removeprefix("host "))
        case "index":
            patch.object(device_pools, "sparse_rows", row_pools.latent_rows).start()
        case _:
            _forget_buffer(name)


def _forget_buffer(name: str) -> None:
    rows = row_pools._tensors

    def some_rows(entries: Sequence[Any], layer: int) -> Iterable[Any]:
        some = [entry for entry in entries if entry.name.value != name]
        for entry in some if name == "draft" else ():
            mapping = entry.layer_mapping
            entry.layer_mapping = {at: one if isinstance(one, int) else one[0] for at, one in mapping.items()}
        return rows(some, layer)

    patch.object(row_pools, "_tensors", some_rows).start()
    some_planes = lambda layers: cache_of([[one for one in layer if one[0] != name] for layer in layers])  # noqa: E731
    patch.object(device_pools, "cache_of", some_planes).start()
    if name == "draft":
        layers = host_pools.layers_of
        of_model = lambda pool, buffer: layers(pool, buffer)[: pool.target_layer_num]  # noqa: E731
        patch.object(host_pools, "layers_of", of_model).start()
        _forget_host_draft()


def _forget_state() -> None:
    pools = device_pools._state_pools

    def some_states(*given: Any) -> tuple[Any, ...]:
        (whole,) = pools(*given)
        tensors: Any = whole.group.kv_caches
        layers = [states[:-1] for states in tensors]
        return (msgspec.structs.replace(whole, group=msgspec.structs.replace(whole.group, kv_caches=layers)),)

    patch.object(device_pools, "_state_pools", some_states).start()


def _forget_host_pool(name: str) -> None:
    joined = host_pools._joined

    def some_joined(group: str, kind: Any, pools: Mapping[str, Any]) -> Any:
        return joined(group, kind, {other: pool for other, pool in pools.items() if other != name})

    patch.object(host_pools, "_joined", some_joined).start()


def _forget_host_draft() -> None:
    """Leaves out the last layer of index keys, and of the windows of DeepSeek V4: that of a draft with one layer."""
    joined, keys = host_pools._joined, host_pools._index_keys

    def of_model(group: str, kind: Any, pools: Mapping[str, Any]) -> Any:
        windows = copy(pools["swa"])
        windows.layer_num -= 1
        return joined(group, kind, {**pools, "swa": windows})

    patch.object(host_pools, "_joined", of_model).start()
    patch.object(host_pools, "_index_keys", lambda pool: keys(pool)[:-1]).start()


def load_one_more(name: str) -> None:
    """Makes pagetier load the first page of each load of a pool once more, into the last page of the pool."""
    from pagetier.client.engines.sglang.linker import loads  # it has the version of SGLang
    from pagetier.client.engines.sglang.storage.pages import StoragePages

    begin, load = loads._begin, StoragePages.load

    def begin_and_one(group: Any, pages: Sequence[Any], after: object) -> Any:
        if group.name == name:
            group.cache.load(pages[0].match, group.cache.slots_of([_last_block(group)], 1), 0, None)
        return begin(group, pages, after)

    def load_and_one(self: Any, pool: str, keys: Sequence[str], indices: Any, extra: Any) -> int:
        if pool == name:
            group = self._opened()[pool]
            load(self, pool, keys[:1], _last_block(group) * group.page_slots + torch.arange(group.page_slots), extra)
        return load(self, pool, keys, indices, extra)

    patch.object(loads, "_begin", begin_and_one).start()
    patch.object(StoragePages, "load", load_and_one).start()


def _last_block(group: Any) -> int:
    return int(group.cache.paged.cache.planes[0].blocks) - 1


def _forget_share(name: str) -> None:
    """Makes pagetier forget which tokens or layers a rank has: its pages are found as those of every other rank."""
    from pagetier.client.engines.sglang.engine import namespace

    named = namespace.namespace_of

    def of_all(facts: Any, pool: Any, paged: Any, *more: Any) -> Any:
        kept = [one for one in pool.variants if not one.startswith("layers ")]
        facts = msgspec.structs.replace(facts, tokens=(0, 1)) if name == "tokens" else facts
        return named(facts, msgspec.structs.replace(pool, variants=kept), paged, *more)

    patch("pagetier.client.engines.sglang.engine.served_engine.namespace_of", of_all).start()


def _load(what: str) -> None:
    """Loads plugins in the order that `what` names, as the process of a scheduler does."""
    if what.startswith("another plugin"):
        target = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache.take_events"
        HookRegistry.register(target, lambda events, _: events, HookType.AFTER, source=HookSource("other", None))
    if what.endswith("alone"):
        HookRegistry.apply_hooks()
    if what.endswith("entry point"):
        import sglang.srt.managers.scheduler  # noqa: F401  it is there in the process of a scheduler

        load_plugins()
