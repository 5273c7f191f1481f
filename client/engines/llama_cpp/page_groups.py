"""The groups of a model's pages, with their namespaces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pagetier.client.engines.file_digests import FileDigests, user_memory
from pagetier.client.engines.llama_cpp.paged_state import Kind, PagedState
from pagetier.client.engines.llama_cpp.sequence_tokens import PageGroup
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Namespace


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
    namespace = Namespace(
        model=f"gguf {' '.join(digests)}",
        title=paths[0].stem,
        dtype="ggml",
        page_tokens=state.page_tokens,
        layout=f"llama.cpp {context.build} n_ubatch={context.n_ubatch} probe={state.probe()}",
        salt=salt,
    )
    return [PageGroup(group, _of_half(namespace, half)) for half, group in enumerate(_groups_of(state))]


def _groups_of(state: PagedState) -> list[Group]:
    """Returns the group of each half of the state."""
    tokens, window = state.page_tokens, state.context.window
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
