"""Digests of pages that an engine has made itself, in whatever form it has them, on their way to keys."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt

HASH_BYTES: Final = 32
"""Bytes of a SHA-256, and so of a key."""

# A hash in msgpack: "bytes, 32 of them", and these.
_ROW: Final = np.dtype([("head", "<u2"), ("hash", ("V", HASH_BYTES))])
_HEAD: Final = HASH_BYTES << 8 | 0xC4
_encode: Final = msgspec.msgpack.Encoder().encode


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


def hashes_of(hashes: object) -> bytes:
    """End to end. Raises TypeError and ValueError as Namespace.keys_of_hashes does."""
    if not is_sequence(hashes):
        return _buffer(hashes)
    rows = _packed(hashes)
    if rows is not None:
        return rows["hash"].tobytes()
    for at, one in enumerate(all_bytes("hash", hashes)):
        if len(one) != HASH_BYTES:
            raise ValueError(f"hash {at} has {len(one)} bytes, not {HASH_BYTES}: such digests are for keys_of()")
    return b"".join(hashes)  # of a type derived from bytes


def _packed(hashes: Sequence[Any]) -> npt.NDArray[np.void] | None:
    """As msgpack, which says the kind and the length of each; None where one is no hash.

    One pass in C instead of two: joining bytes and looking at the length of each takes half as long again.
    """
    try:
        packed = _encode(hashes if isinstance(hashes, (list, tuple)) else list(hashes))
    except TypeError:
        return None
    head = 1 if len(hashes) < 16 else 3 if len(hashes) < 1 << 16 else 5
    if len(packed) != head + len(hashes) * _ROW.itemsize:
        return None
    rows = np.frombuffer(packed, _ROW, offset=head)
    return rows if (rows["head"] == _HEAD).all() else None


def mixed_into(hashes: bytes, digest: bytes) -> bytes:
    """Each of the hashes XOR the digest."""
    pattern = np.frombuffer(digest * (len(hashes) // HASH_BYTES), np.uint64)
    return (np.frombuffer(hashes, np.uint64) ^ pattern).tobytes()


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
