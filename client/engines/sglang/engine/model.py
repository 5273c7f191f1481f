"""What pagetier takes from SGLang besides the pools: its version, the configuration of the model, and the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed.utils import get_pp_indices
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
from sglang.srt.runtime_context import get_parallel, get_server_args

from pagetier.client.engines.file_digests import digest_of_setting
from pagetier.client.engines.sglang.engine.namespace import EngineFacts
from pagetier.client.engines.sglang.engine.version import VERSION, require_known_version
from pagetier.client.engines.sglang.pools.device_pools import DRAFT, WINDOW, divides_layers
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.kernels.layout.page_layout import Shard


class Ranks:
    """The ranks of an engine that compute with the same layers.

    Tensor parallelism divides the heads of attention among them, and decode context parallelism the tokens of a page:
    ranks that have the same tokens divide the heads. Context parallelism divides the computation of a prompt only: each
    of its ranks gathers the state of all tokens, so that they are replicas of which one stores. They may divide the
    layers of sparse attention, and then each stores its own.

    Attributes:
        tokens: The share of the tokens of a page: every so manieth one, the number and the count of the shares.
        replica: The number of ranks before this one that have the same state.
        several: Whether there is more than one rank.
    """

    def __init__(self, params: Any) -> None:
        heads, contexts = params.attn_tp_cache_group or params.tp_cache_group, params.attn_cp_cache_group
        self._groups = [group for group in (heads, contexts) if _place(group)[1] > 1]
        (self._rank, self._ranks), (self._context, contexts_of_all) = _place(heads), _place(contexts)
        splits = get_parallel().attn_dcp_size
        self.tokens = (self._rank % splits, splits)
        self.several = self._ranks * contexts_of_all > 1
        self.replica = 0 if divides_layers(params.token_to_kv_pool_allocator.get_kvcache()) else self._context

    @property
    def shard(self) -> Shard:
        """The share of the heads in this process, among the ranks that have the same tokens."""
        splits = self.tokens[1]
        return Shard(self._rank // splits, self._ranks // splits)

    @property
    def number(self) -> int:
        """The number of this rank. The first one logs and announces for all."""
        return self._context * self._ranks + self._rank

    @property
    def reads(self) -> bool:
        """Whether this rank reads what memory lacks, for all that have the same pages."""
        return not self.shard.rank and not self.replica

    def agree(self, *, here: bool) -> bool:
        """Returns whether the answer of every rank is True. All ranks call it; with one rank it costs nothing."""
        if not self.several:
            return here
        answer = torch.tensor([int(here)], dtype=torch.int)
        for group in self._groups:
            torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MIN, group=group)
        return bool(answer.item())

    def of_first(self, text: str) -> str:
        """Returns the text of the first rank. All ranks call it."""
        if not self.several:
            return text
        texts = [text]
        for group in self._groups:
            torch.distributed.broadcast_object_list(texts, group_src=0, group=group)
        return texts[0]


def _place(group: Any) -> tuple[int, int]:
    """Returns the rank of this process in a group, and how many ranks there are; without a group it is alone."""
    if group is None or not torch.distributed.is_initialized():
        return 0, 1
    return torch.distributed.get_rank(group=group), torch.distributed.get_world_size(group=group)


def engine_facts(server: Any, params: Any = None) -> EngineFacts:
    """Returns what an engine computes with.

    Args:
        server: SGLang's ServerArgs. Settings may differ from those that were given.
        params: SGLang's CacheInitParams, which has the pools of draft models.
    """
    draft = _draft_model(server) if params is not None and _draft_pools(params) else None
    view = resolving_view(server)
    scales = digest_of_setting(view.quantization_param_path)
    return EngineFacts(VERSION, ModelConfig.from_server_args(server), view, draft, scales=scales)


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


def heads_with_draft(facts: EngineFacts) -> Callable[[str], int]:
    """Returns a function as heads_of() does, for pools that have the layers of a draft model beside those of the model.

    The function raises UnsupportedError if the draft has other heads: SGLang compares the bytes of each rank only.
    """
    own = heads_of(facts)
    drafts = own if facts.draft is None else heads_of(msgspec.structs.replace(facts, model=facts.draft))

    def heads(pool: str) -> int:
        if own(pool) != drafts(pool):
            raise UnsupportedError("HiCache with a draft model of other KV heads than the model's: use the linker")
        return own(pool)

    return heads


def heads_shard() -> Shard:
    """Returns the share of the heads of attention that this rank has."""
    parallel = get_parallel()
    return Shard(parallel.attn_tp_rank, parallel.attn_tp_size)


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


def require_known(params: Any) -> None:
    """Rejects a version or a parallelism of SGLang with which the linker caches nothing.

    A load of the linker must succeed on all stages of a pipeline or on none. In SGLang 0.5.23 nothing of a linker is
    compared among stages: neither what they have found (unified_cache_linker.py:363), nor whether they have loaded it
    (:586), nor how many offloads have ended, which determines what each stage may evict (unified_radix_cache.py:3659).
    A linker could ask for the pages of all stages and hand the first stage's answer on, but not undo a load: the first
    stage has computed a batch, and sent it on (scheduler_pp_mixin.py), before the next one loads for it, and what that
    one says of its requests (scheduler.py:4927) stays there. It would drop a request that the first stage continues
    with, or compute with rows that were not loaded. HiCache has loaded into host memory on all stages before any of
    them begins.

    Args:
        params: SGLang's CacheInitParams.

    Raises:
        UnsupportedError: The message says what to change.
    """
    require_known_version()
    if params.pp_size > 1:
        raise UnsupportedError(
            "pipeline parallelism: a linker's stages cannot agree on a load; use HiCache, or no --pp-size"
        )


def stage_of(facts: EngineFacts, config: Any) -> EngineFacts:
    """Returns the facts of one pipeline stage, whose pages have its layers only.

    SGLang takes a page for one that is there if all stages have their pages of it. The last stage has all MTP layers of
    a draft, as a part of its pages, and the others have none (eagle_worker_v2.py:1334).

    Args:
        facts: Those of the model.
        config: SGLang's HiCacheStorageConfig.

    Raises:
        UnsupportedError: Other drafts. All stages say so, though the last one alone has their pools.
    """
    if config.pp_size == 1:
        return facts
    if not _has_packed_draft(facts):
        raise UnsupportedError(
            "drafts other than EAGLE with MTP layers beside pipeline parallelism: leave --speculative-algorithm out"
        )
    layers = get_pp_indices(facts.model.num_hidden_layers, config.pp_rank, config.pp_size)
    return msgspec.structs.replace(facts, stage=(config.pp_rank, config.pp_size, *layers))


def _has_packed_draft(facts: EngineFacts) -> bool:
    """Returns whether SGLang packs the draft into the pools of the model (base_spec_worker.py:40), if there is one."""
    algorithm, draft = facts.server.speculative_algorithm, facts.draft
    if not algorithm:
        return True
    return algorithm.upper() == "EAGLE" and (draft is None or bool(draft.num_nextn_predict_layers))
