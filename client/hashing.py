"""Hashes the pages of a prompt: from token IDs or digests, in any form that an engine has, to the bytes of keys.

The hashes of tokens form a chain: each is over the tokens of its page and the hash before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import repeat
from operator import index
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import KEY_BYTES, keys_of_hashes
from pagetier.shm.page_rows import PAGE_KEYS

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on

_TOKEN_BYTES: Final = 4
_LIMIT: Final = 2**32
_U32: Final = np.dtype("<u4")
_I32: Final = np.dtype("<i4")


class ArrayLike(Protocol):
    """An object that numpy can view as an array: numpy arrays, torch CPU tensors and the like."""

    def __array__(self) -> npt.NDArray[Any]: ...


Tokens: TypeAlias = "Sequence[int] | ArrayLike | array[int] | memoryview"
"""Token IDs: one dimension, integers from 0 to 2**32-1."""

Hashes: TypeAlias = "Sequence[bytes] | Buffer | npt.NDArray[np.uint8]"
"""An engine's own hashes, one a page: bytes objects of any length but 0, or one buffer with 32 bytes for each."""


def chained(previous: bytes, ids: npt.NDArray[np.uint32], page_tokens: int, extras: Iterable[bytes]) -> bytes:
    """Returns the keys of all full pages of `ids`. Each is hashed over the one before it, the first over `previous`."""
    pages = ids.view(np.uint8).data
    page_bytes = page_tokens * _TOKEN_BYTES
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


def token_ids(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """Returns `tokens` as a contiguous array of little-endian u32.

    The result shares memory with an int32 or uint32 array, tensor or buffer that is little-endian and contiguous; all
    other forms are converted.

    Raises TypeError if `tokens` is not one-dimensional or holds other values than integers: floats, bools, nested
    lists, text, or bytes, which could be tokens or packed tokens. Raises ValueError if a token is not in 0 .. 2**32-1;
    the message names the first one.
    """
    if isinstance(tokens, (list, tuple, range)):
        return _from_sequence(tokens)
    if isinstance(tokens, np.ndarray):
        return _from_array(tokens)
    if hasattr(tokens, "__array__"):
        return _from_foreign(tokens)
    return _from_other(tokens)


def _from_other(tokens: Any) -> npt.NDArray[np.uint32]:
    if isinstance(tokens, (str, bytes, bytearray)):
        raise _not_integers(tokens)
    if isinstance(tokens, Sequence) and not isinstance(tokens, (array, memoryview)):
        return _from_sequence(tokens)
    return _from_buffer(tokens)


def _not_integers(tokens: object) -> TypeError:
    return TypeError(f"tokens must be integers (a sequence, an array or a buffer of them), not {type(tokens).__name__}")


def _from_sequence(tokens: Sequence[int]) -> npt.NDArray[np.uint32]:
    try:
        # Three times as fast as numpy's conversion of a list, and it rejects floats.
        ids = np.asarray(array("I", tokens), dtype=_U32)
    except (TypeError, OverflowError):
        raise _first_invalid(tokens) from None
    _reject_bools(tokens, ids)
    return ids


def _first_invalid(tokens: Sequence[Any]) -> TypeError | ValueError:
    for position, token in enumerate(tokens):
        try:
            value = index(token)
        except TypeError:
            return TypeError(f"token {position} must be an integer, not {type(token).__name__}")
        if not 0 <= value < _LIMIT:
            return _out_of_range(position, value)
    return _not_integers(tokens)


def _reject_bools(tokens: Sequence[int], ids: npt.NDArray[np.uint32]) -> None:
    """Rejects bools. They convert to 0 or 1, so only those are checked: checking all takes longer than hashing."""
    for position in np.flatnonzero(ids <= 1).tolist():
        if isinstance(tokens[position], bool):
            raise TypeError(f"token {position} must be an integer, not bool")


def _from_buffer(tokens: Any) -> npt.NDArray[np.uint32]:
    try:
        view = memoryview(tokens)
    except TypeError:
        raise _not_integers(tokens) from None
    if view.itemsize == 1 and not isinstance(tokens, array):
        raise TypeError("a buffer of bytes is ambiguous: pass an array of its integers")
    if view.format.lstrip("@=<>!") not in set("bBhHiIlLqQ"):
        raise _not_integers(tokens)
    return _from_array(np.asarray(view))


def _from_foreign(tokens: ArrayLike) -> npt.NDArray[np.uint32]:
    try:
        viewed = np.asarray(tokens)
    except RuntimeError as error:  # a tensor that requires grad, or has no memory
        raise TypeError(f"tokens must be integers in host memory: {error}") from error
    return _from_array(viewed)


def _from_array(tokens: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"tokens must be integers, not {tokens.dtype}")
    if tokens.ndim != 1:
        raise TypeError(f"tokens must have one dimension, not {tokens.ndim}: pass one prompt at a time")
    _check_range(tokens)
    same_bits = tokens.view(_U32) if tokens.dtype == _I32 else tokens
    return np.ascontiguousarray(same_bits, dtype=_U32)


def _check_range(tokens: npt.NDArray[Any]) -> None:
    # OR-ing all IDs reveals a sign or a high bit in any of them. `min` would too, but numpy computes it with AVX-512,
    # and on some machines this lowers the clock so that the hashing after it is 7 % slower.
    if not 0 <= int(np.bitwise_or.reduce(tokens)) < _LIMIT:
        position = int(np.argmax((tokens < 0) | (tokens >= _LIMIT)))
        raise _out_of_range(position, int(tokens[position]))


def _out_of_range(position: int, token: int) -> ValueError:
    return ValueError(f"token {position} is {token}: token ids run from 0 to {_LIMIT - 1}")


def digests_of(digests: object) -> Iterable[bytes]:
    """Returns the digests one by one. Raises TypeError and ValueError as Namespace.keys_of() does."""
    if not is_sequence(digests):
        return _split(digests)
    if b"" in all_bytes("digest", digests):
        raise ValueError(f"digest {digests.index(b'')} is empty")
    return digests


def _split(digests: object) -> Iterator[bytes]:
    return iter(PAGE_KEYS.split(_buffer(digests)))


def _buffer(digests: object) -> bytes:
    view = _view(digests)
    if view is None or view.format not in ("B", "b", "c"):
        raise TypeError(f"digests must be a sequence of bytes or one buffer of bytes, not {type(digests).__name__}")
    data = view.tobytes()
    if not PAGE_KEYS.is_whole(data):
        raise ValueError(f"digests in one buffer have {KEY_BYTES} bytes each: {view.nbytes} is not a multiple of that")
    return data


def mixed_into(hashes: object, digest: bytes) -> bytes:
    """Returns each hash XOR the digest, 32 bytes each.

    Raises TypeError and ValueError as Namespace.keys_of_hashes() does.
    """
    if isinstance(hashes, (list, tuple)):
        return keys_of_hashes(hashes, digest)
    if is_sequence(hashes):
        return keys_of_hashes(list(hashes), digest)
    data = _buffer(hashes)
    pattern = np.frombuffer(digest * PAGE_KEYS.count(data), np.uint64)
    return (np.frombuffer(data, np.uint64) ^ pattern).tobytes()


def all_bytes(what: str, items: Sequence[Any]) -> Sequence[bytes]:
    """Returns the items. Raises TypeError if one of them is not bytes; `what` names them in the message."""
    for position, item in enumerate(items):
        if not isinstance(item, bytes):
            raise TypeError(f"{what} {position} must be bytes, not {type(item).__name__}")
    return items


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Returns whether the value is a list or the like, and not a single buffer or text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, memoryview, array))


def _view(value: Any) -> memoryview | None:
    try:
        return memoryview(value)
    except TypeError:
        return None
