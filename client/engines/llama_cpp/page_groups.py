"""The groups of a model's pages, with their namespaces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pagetier.client.engines.block_groups import BlockGroup, fill_of
from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.llama_cpp.paged_state import Kind, PagedState
from pagetier.client.engines.llama_cpp.sequence_tokens import PageGroup
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Namespace

_ENOUGH: Final = 0.88
_LEAST: Final = 0.75  # below it hits of coarser pages would be lost for nothing: the model needs smaller frames
_MOST_TOKENS: Final = 1024
_CONTEXT_PAGES: Final = 4  # fewer pages in a context would make hits of short prompts rare


def page_groups(state: PagedState, files: Sequence[str | os.PathLike[str]], salt: str) -> list[PageGroup]:
    """Returns the groups of a context.

    Args:
        state: The state of the context's sequences.
        files: The GGUF files of the model.
        salt: A text that separates tenants.
    """
    paths = [Path(file) for file in files]
    digests = FileDigests(user_memory()).digests_of(paths)
    context = state.context
    window = f" window={context.window}" if context.window else ""  # the probe is shorter than any
    namespace = Namespace(
        model=f"gguf {' '.join(digests)}",
        title=paths[0].stem,
        dtype="ggml",
        page_tokens=state.page_tokens,
        layout=f"llama.cpp {context.build} n_ubatch={context.n_ubatch}{window} probe={state.probe()}",
        salt=salt,
    )
    groups = _groups_of(state, state.page_tokens)
    return [PageGroup(group, _of_half(namespace, half)) for half, group in enumerate(groups)]


def filling_page_tokens(state: PagedState) -> int:
    """Returns the tokens of as many batches as fill the daemon's frames.

    A recurrent state exists only at the end of a decoded batch, so that its page is one batch.
    """
    batch = state.context.n_ubatch
    if state.kind in (Kind.HYBRID, Kind.RECURRENT):
        return batch
    sizes = zip(_groups_of(state, batch), state.sizes_of(batch), strict=False)  # plain state has one half
    return batch * batches_of_page([BlockGroup(*of_batch) for of_batch in sizes], state.context.n_ctx_seq)


def batches_of_page(batches: Sequence[BlockGroup], context_tokens: int) -> int:
    """Returns how many batches form a page: the fewest that fill 88 % of their frames.

    If no page of at most 1,024 tokens and a quarter of the context does, it is the number that fills most; if that is
    less than 75 %, it is 1.

    Args:
        batches: Each group, with its state of one batch.
        context_tokens: The tokens that a sequence may have.
    """
    most = min(_MOST_TOKENS, context_tokens // _CONTEXT_PAGES) // batches[0].kind.page_tokens
    counts = [1, *(count for count in range(2, most + 1) if all(batch.allows(count) for batch in batches))]
    fills = {count: fill_of(batches, count) for count in counts}
    best = max(counts, key=lambda count: fills[count])
    return next((count for count in counts if fills[count] >= _ENOUGH), best if fills[best] >= _LEAST else 1)


def _groups_of(state: PagedState, tokens: int) -> list[Group]:
    """Returns the group of each half of the state, in pages of so many tokens."""
    window = state.context.window
    match state.kind:
        case Kind.PLAIN:
            return [FullAttention(tokens)]
        case Kind.WINDOW:
            return [FullAttention(tokens), SlidingWindow(tokens, window)]
        case Kind.HYBRID:
            return [FullAttention(tokens), Recurrent(tokens)]
        case Kind.RECURRENT:
            return [Recurrent(tokens)]


def _of_half(namespace: Namespace, half: int) -> Namespace:
    return msgspec.structs.replace(namespace, group=("base", "part")[half])
