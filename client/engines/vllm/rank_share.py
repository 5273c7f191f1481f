"""Determines the share of a model's state that a rank of vLLM has.

Tensor parallelism divides heads: its ranks store parts of the same pages. Pipeline parallelism divides layers, and
decode context parallelism tokens: a division of the ranks is those that have the same layers and tokens, and each
division has groups of its own, with pages and keys of its own. A hit needs the pages of all divisions.

Prefill context parallelism divides the computation only: each rank gathers the state of all tokens. vLLM (0.32) has it
for latent attention only, whose one head all ranks have anyway, so that its ranks are further tensor ranks here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.group_kinds import has_latents, kind_of
from pagetier.client.groups import FullAttention, Group
from pagetier.kernels.layout.page_layout import Shard


class ContextShare(msgspec.Struct, frozen=True):
    """Every so manieth token: those of rank `rank` of `ranks`, `interleave` tokens at a time."""

    rank: int = 0
    ranks: int = 1
    interleave: int = 1


class RankShare(msgspec.Struct, frozen=True):
    """The share of one rank.

    Attributes:
        division: The number of its division, from 0; the groups of a model are numbered division by division.
        heads: Its share of the heads in the division.
        context: Its share of the tokens.
    """

    division: int
    heads: Shard
    context: ContextShare


def share_of(parallel: Any) -> RankShare:
    """Returns the share of the rank with this ParallelConfig.

    vLLM numbers ranks by pipeline stage, then by prefill rank, then by tensor rank. Decode context parallelism divides
    the ranks of a stage, and counts the prefill ranks of each tensor rank first.
    """
    tensor, context = int(parallel.tensor_parallel_size), _contexts(parallel)
    stage, rank = divmod(int(parallel.rank) % ranks_of(parallel), tensor * prefill_ranks(parallel))
    place = rank % tensor * prefill_ranks(parallel) + rank // tensor
    interleave = int(getattr(parallel, "cp_kv_cache_interleave_size", None) or 1)
    tokens = ContextShare(place % context, context, interleave if context > 1 else 1)
    ranks = tensor * prefill_ranks(parallel) // context
    return RankShare(stage * context + tokens.rank, Shard(place // context, ranks), tokens)


def ranks_of(parallel: Any) -> int:
    """Returns the number of ranks of an engine with this ParallelConfig."""
    return int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size) * prefill_ranks(parallel)


def prefill_ranks(parallel: Any) -> int:
    """Returns the number of ranks that divide the computation of a prompt."""
    return int(getattr(parallel, "prefill_context_parallel_size", 1))


def check_prefill(parallel: Any, specs: Iterable[Any]) -> None:
    """Raises UnsupportedError unless all ranks that divide the computation of a prompt have the same state."""
    if prefill_ranks(parallel) == 1:
        return
    if not hasattr(parallel, "pcp_shard_decode_requests"):
        raise UnsupportedError("--prefill-context-parallel-size needs vLLM 0.32 or later")
    if not all(map(has_latents, specs)):
        raise UnsupportedError(
            "--prefill-context-parallel-size is supported for latent attention (MLA) only: leave it out, or divide"
            " the ranks by --tensor-parallel-size"
        )


def kind_in(spec: Any, context: ContextShare) -> Group:
    """Returns the kind of a group whose blocks have only the tokens of some ranks: a page has the tokens of all.

    Raises:
        UnsupportedError: vLLM does not divide the tokens of this group.
    """
    kind = kind_of(spec)
    if context.ranks == 1:
        return kind
    if not isinstance(kind, FullAttention) or not getattr(spec, "dcp_sharded", True):
        raise UnsupportedError(
            "--decode-context-parallel-size is supported for models and drafts whose layers are all divided by it:"
            " leave it out"
        )
    return FullAttention(kind.page_tokens * context.ranks)


def _contexts(parallel: Any) -> int:
    return int(getattr(parallel, "decode_context_parallel_size", 1))
