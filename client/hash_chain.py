"""The hashes that chain the pages of a prompt: each is over the tokens of its page and the hash before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.client.hash_inputs import TOKEN_BYTES, all_bytes, is_sequence


def chained(previous: bytes, ids: npt.NDArray[np.uint32], page_tokens: int, extras: Iterable[bytes]) -> bytes:
    """Returns the keys of all full pages of `ids`. Each is hashed over the one before it, the first over `previous`."""
    pages = ids.view(np.uint8).data
    page_bytes = page_tokens * TOKEN_BYTES
    keys = []
    # The hot path: each statement in this loop runs once for each page, besides about 4 µs of hashing for 256 tokens.
    for start, extra in zip(range(0, len(pages) - page_bytes + 1, page_bytes), extras, strict=False):
        state = sha256(previous)
        state.update(pages[start : start + page_bytes])
        if extra:
            state.update(extra)
        previous = state.digest()
        keys.append(previous)
    return b"".join(keys)


def extras_of(extra: bytes | Sequence[bytes], pages: int) -> Iterable[bytes]:
    """Returns what is hashed besides the tokens of each page.

    Raises:
        TypeError: `extra` is neither bytes nor a sequence of bytes.
        ValueError: There is another number of items than of pages.
    """
    if isinstance(extra, bytes):
        return repeat(extra)
    if not is_sequence(extra):
        raise TypeError(f"extra must be bytes or a sequence of bytes, not {type(extra).__name__}")
    if len(extra) != pages:
        raise ValueError(f"extra has {len(extra)} items for {pages} full pages of tokens")
    return all_bytes("extra", extra)


def hashed_after(previous: Any, digest: bytes) -> bytes:
    """Returns the hash of a digest after what `previous` has hashed already."""
    state = previous.copy()
    state.update(digest)
    return bytes(state.digest())
