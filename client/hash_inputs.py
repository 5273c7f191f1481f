"""Token ids in whatever form an engine has them, as little-endian u32 to be hashed."""

from array import array
from collections.abc import Sequence
from operator import index
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

TOKEN_BYTES: Final = 4
"""Bytes of one token id in a key's input."""

_LIMIT: Final = 2**32
_U32: Final = np.dtype("<u4")
_I32: Final = np.dtype("<i4")


class ArrayLike(Protocol):
    """What numpy can view as an array: numpy arrays, torch CPU tensors and their like."""

    def __array__(self) -> npt.NDArray[Any]: ...


Tokens: TypeAlias = "Sequence[int] | ArrayLike | array[int] | memoryview"
"""Token ids: one dimension, integers in 0 .. 2**32-1."""


def token_ids(tokens: Tokens) -> npt.NDArray[np.uint32]:
    """`tokens` as contiguous little-endian u32.

    Shares memory with an int32 or uint32 array (or tensor, or buffer) that is little-endian and in one
    piece; everything else is converted.

    Raises:
        TypeError: what is no row of integers: floats, bools, texts, bytes (are they tokens or packed
            tokens?), nested lists, other than one dimension.
        ValueError: a token outside 0 .. 2**32-1; the message names the first.
    """
    if isinstance(tokens, (list, tuple, range)):
        return _from_sequence(tokens)
    if isinstance(tokens, np.ndarray):
        return _from_array(tokens)
    if isinstance(tokens, (str, bytes, bytearray)):
        raise _unfit(tokens)
    if hasattr(tokens, "__array__"):
        return _from_foreign(tokens)
    return _from_other(tokens)


def _from_other(tokens: Any) -> npt.NDArray[np.uint32]:
    if isinstance(tokens, Sequence) and not isinstance(tokens, (array, memoryview)):
        return _from_sequence(tokens)
    return _from_buffer(tokens)


def _unfit(tokens: object) -> TypeError:
    return TypeError(f"tokens must be integers (a sequence, an array or a buffer of them), not {type(tokens).__name__}")


def _from_sequence(tokens: Sequence[int]) -> npt.NDArray[np.uint32]:
    try:
        # Three times as fast as numpy's own conversion of a list, and it takes no floats.
        ids = np.asarray(array("I", tokens), dtype=_U32)
    except (TypeError, OverflowError):
        raise _first_unfit(tokens) from None
    _refuse_bools(tokens, ids)
    return ids


def _first_unfit(tokens: Sequence[Any]) -> TypeError | ValueError:
    for position, token in enumerate(tokens):
        try:
            value = index(token)
        except TypeError:
            return TypeError(f"token {position} is no integer but {type(token).__name__}")
        if not 0 <= value < _LIMIT:
            return _out_of_range(position, value)
    return _unfit(tokens)


def _refuse_bools(tokens: Sequence[int], ids: npt.NDArray[np.uint32]) -> None:
    """A bool passes for 0 or 1, so only those need a look (looking at every type costs more than hashing)."""
    for position in np.flatnonzero(ids <= 1).tolist():
        if isinstance(tokens[position], bool):
            raise TypeError(f"token {position} is no integer but bool")


def _from_buffer(tokens: Any) -> npt.NDArray[np.uint32]:
    try:
        view = memoryview(tokens)
    except TypeError:
        raise _unfit(tokens) from None
    if view.itemsize == 1 and not isinstance(tokens, array):
        raise TypeError("a buffer of bytes is ambiguous: make it an array of the integers that it holds")
    if view.format.lstrip("@=<>!") not in set("bBhHiIlLqQ"):
        raise _unfit(tokens)
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
        raise TypeError(f"tokens must have one dimension, not {tokens.ndim}: give one prompt at a time")
    _check_range(tokens)
    same_bits = tokens.view(_U32) if tokens.dtype == _I32 else tokens
    return np.ascontiguousarray(same_bits, dtype=_U32)


def _check_range(tokens: npt.NDArray[Any]) -> None:
    # All ids or-ed together show a sign or a high bit of any. `min` would say as much, but numpy does it in
    # AVX-512, and on some machines the clock that this lowers makes the hashing after it 7 % slower.
    if not 0 <= int(np.bitwise_or.reduce(tokens)) < _LIMIT:
        position = int(np.argmax((tokens < 0) | (tokens >= _LIMIT)))
        raise _out_of_range(position, int(tokens[position]))


def _out_of_range(position: int, token: int) -> ValueError:
    return ValueError(f"token {position} is {token}: token ids run from 0 to {_LIMIT - 1}")
