"""What pagetier takes from SGLang besides the pools: its version, the configuration of the model, and the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.runtime_context import get_parallel, get_server_args

from pagetier.client.engines.sglang.engine.namespace import EngineFacts
from pagetier.client.engines.sglang.engine.version import VERSION, require_known_version
from pagetier.client.engines.sglang.pools.device_pools import DRAFT, WINDOW
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.kernels.layout.page_layout import Shard


class Ranks:
    """The tensor-parallel ranks of an engine that share the heads of attention.

    Attributes:
        shard: The share of the model in this process.
    """

    def __init__(self, params: Any) -> None:
        self._group = params.attn_tp_cache_group or params.tp_cache_group
        here = self._group is not None and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank(group=self._group) if here else 0
        ranks = torch.distributed.get_world_size(group=self._group) if here else 1
        self.shard = Shard(rank, ranks)

    @property
    def several(self) -> bool:
        """Whether there is more than one rank."""
        return self.shard.ranks > 1

    def agree(self, *, here: bool) -> bool:
        """Returns whether the answer of every rank is True. All ranks call it; with one rank it costs nothing."""
        if not self.several:
            return here
        answer = torch.tensor([int(here)], dtype=torch.int)
        torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MIN, group=self._group)
        return bool(answer.item())

    def of_first(self, text: str) -> str:
        """Returns the text of the first rank. All ranks call it."""
        if not self.several:
            return text
        texts = [text]
        torch.distributed.broadcast_object_list(texts, group_src=0, group=self._group)
        return texts[0]


def engine_facts(server: Any, params: Any = None) -> EngineFacts:
    """Returns what an engine computes with.

    Args:
        server: SGLang's ServerArgs. Settings may differ from those that were given.
        params: SGLang's CacheInitParams, which has the pools of draft models.
    """
    draft = _draft_model(server) if params is not None and _draft_pools(params) else None
    return EngineFacts(VERSION, ModelConfig.from_server_args(server), resolving_view(server), draft)


def _draft_pools(params: Any) -> tuple[Any, ...]:
    return (*params.mtp_draft_device_pools, *params.sidecar_draft_device_pools)


def _draft_model(server: Any) -> Any:
    """Returns SGLang's ModelConfig of the draft model: without a path of its own, that of the model's MTP layers."""
    view = resolving_view(server)
    return ModelConfig.from_server_args(
        server,
        model_path=view.speculative_draft_model_path or view.model_path,
        model_revision=view.speculative_draft_model_revision,
        is_draft_model=True,
    )


def this_engine() -> EngineFacts:
    """Returns what the engine of this process computes with. HiCache has the layers of a draft model in its pages."""
    server = get_server_args()
    draft = _draft_model(server) if resolving_view(server).speculative_draft_model_path else None
    return msgspec.structs.replace(engine_facts(server), draft=draft)


def heads_of(facts: EngineFacts) -> Callable[[str], int]:
    """Returns a function that returns the KV heads of the whole model in the layers of a pool."""

    def heads(pool: str) -> int:
        model = facts.draft if pool == DRAFT else facts.model
        return int(model.get_swa_num_kv_heads(1) if pool == WINDOW else model.get_num_kv_heads(1))

    return heads


def described_pools(params: Any, components: Any) -> Any:
    """Returns the pools as SGLang describes them to linkers.

    Args:
        params: SGLang's CacheInitParams.
        components: The components of SGLang's tree.

    Raises:
        UnsupportedError: SGLang cannot describe them; the message is its own.
    """
    cache = params.token_to_kv_pool_allocator.get_kvcache()
    try:
        return resolve_hybrid_device_pool_group(
            kvcache=cache, page_size=params.page_size, params=params, components=components
        )
    except (AssertionError, ValueError) as error:
        raise UnsupportedError(f"{type(cache).__name__}: {error}") from error


def require_known(parallel: Any) -> None:
    """Rejects a version or a parallelism of SGLang with which nothing is cached.

    Args:
        parallel: SGLang's CacheInitParams or HiCacheStorageConfig.

    Raises:
        UnsupportedError: The message says what to change.
    """
    require_known_version()
    if parallel.pp_size > 1:
        raise UnsupportedError(
            "pipeline parallelism: its stages do not agree on what they load; use --tensor-parallel-size"
        )
    if parallel.attn_cp_size > 1:
        raise UnsupportedError("context parallelism is not supported: leave --attn-cp-size out")
    if get_parallel().attn_dcp_size > 1:
        raise UnsupportedError("decode context parallelism is not supported: leave --dcp-size out")
