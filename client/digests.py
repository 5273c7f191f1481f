"""Digests of pages that an engine has made itself, in whatever form it has them, on their way to keys."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeGuard

import numpy as np

from pagetier.shm._core import keys_of_hashes

HASH_BYTES: Final = 32
"""Bytes of a SHA-256, and so of a key."""


def digests_of(digests: object) -> Iterable[bytes]:
    """One by one. Raises TypeError and ValueError as Namespace.keys_of does."""
    if not is_sequence(digests):
        return _split(digests)
    if b"" in all_bytes("digest", digests):
        raise ValueError(f"digest {digests.index(b'')} is empty")
    return digests


def _split(digests: object) -> Iterator[bytes]:
    data = _buffer(digests)
    return (data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES))


def _buffer(digests: object) -> bytes:
    view = _view(digests)
    if view is None or view.format not in ("B", "b", "c"):
        raise TypeError(f"digests must be a sequence of bytes or one buffer of bytes, not {type(digests).__name__}")
    if view.nbytes % HASH_BYTES:
        raise ValueError(f"digests in one buffer have {HASH_BYTES} bytes each: {view.nbytes} is no multiple of that")
    return view.tobytes()


def mixed_into(hashes: object, digest: bytes) -> bytes:
    """Each of the hashes XOR the digest. Raises TypeError and ValueError as Namespace.keys_of_hashes does."""
    if is_sequence(hashes):
        return keys_of_hashes(hashes if isinstance(hashes, (list, tuple)) else list(hashes), digest)
    data = _buffer(hashes)
    pattern = np.frombuffer(digest * (len(data) // HASH_BYTES), np.uint64)
    return (np.frombuffer(data, np.uint64) ^ pattern).tobytes()


def all_bytes(what: str, items: Sequence[Any]) -> Sequence[bytes]:
    """The same items. Raises TypeError where one is no bytes."""
    for position, item in enumerate(items):
        if not isinstance(item, bytes):
            raise TypeError(f"{what} {position} must be bytes, not {type(item).__name__}")
    return items


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """True for lists and their like, false for what is one buffer or one text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview, array))


def _view(value: Any) -> memoryview | None:
    try:
        return memoryview(value)
    except TypeError:
        return None
