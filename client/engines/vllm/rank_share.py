"""Determines the share of a model's state that a rank of vLLM has.

Tensor parallelism divides heads: its ranks store parts of the same pages. Pipeline parallelism divides layers, and
context parallelism tokens: a division of the ranks is those that have the same layers and tokens, and each division has
groups of its own, with pages and keys of its own. A hit needs the pages of all divisions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pagetier.client.engines.vllm.group_kinds import UnsupportedError
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

    vLLM numbers ranks by pipeline stage, then by tensor rank; decode context parallelism divides the tensor ranks.

    Raises:
        UnsupportedError: Ranks have copies of the same state.
    """
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        raise UnsupportedError("prefill context parallelism is not supported")
    tensor, context = int(parallel.tensor_parallel_size), _contexts(parallel)
    stage, rank = divmod(int(parallel.rank) % ranks_of(parallel), tensor)
    interleave = int(getattr(parallel, "cp_kv_cache_interleave_size", None) or 1)
    tokens = ContextShare(rank % context, context, interleave if context > 1 else 1)
    return RankShare(stage * context + tokens.rank, Shard(rank // context, tensor // context), tokens)


def ranks_of(parallel: Any) -> int:
    """Returns the number of ranks of an engine with this ParallelConfig."""
    return int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)


def kind_in(kind: Group, context: ContextShare) -> Group:
    """Returns the kind of a group whose blocks have only the tokens of some ranks: a page has the tokens of all.

    Raises:
        UnsupportedError: The group is not of full attention, so that vLLM does not divide its tokens.
    """
    if context.ranks == 1:
        return kind
    if not isinstance(kind, FullAttention):
        raise UnsupportedError("context parallelism of layers without full attention is not supported")
    return FullAttention(kind.page_tokens * context.ranks)


def _contexts(parallel: Any) -> int:
    return int(getattr(parallel, "decode_context_parallel_size", 1))
