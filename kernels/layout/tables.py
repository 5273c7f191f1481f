"""The tables of a copy: structured arrays, whose rows are structs of the C core (shm/core/client/copy_tables.h).

They are read-only once they are validated; see frozen().

PLANE: a plane of the cache.
    base        address of block 0, token 0, this rank's first head
    block       stride from block to block; all strides are in bytes
    token       stride from token to token within a block
    head        stride from head to head
    at          offset in the page of this rank's first head
    page_head   stride in the page from head to head; the tokens of a head are contiguous
    heads       number of heads
    width       bytes of a row

TOKENS: the tokens of a page that are copied.
    position    position of the page's token 0 in the block table, in tokens
    first       the first token to copy, counted from the page's token 0
    end         the end of the tokens to copy (exclusive)
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import PLANE_LAYOUT, TOKENS_LAYOUT, StructLayout

TableRows: TypeAlias = npt.NDArray[np.void]
Numbers: TypeAlias = npt.NDArray[np.int64]


def struct_dtype(layout: StructLayout) -> np.dtype[np.void]:
    """Returns the dtype of an array of structs with this layout."""
    names, offsets, sizes = zip(*layout.fields, strict=True)
    formats = [f"<i{size}" for size in sizes]
    form: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": layout.size}
    dtype: np.dtype[np.void] = np.dtype(form)
    return dtype


PLANE: Final = struct_dtype(PLANE_LAYOUT)
TOKENS: Final = struct_dtype(TOKENS_LAYOUT)


def token_rows(position: npt.ArrayLike, first: npt.ArrayLike, end: npt.ArrayLike) -> TableRows:
    """Returns a table of TOKENS with a row for each item of `position`; the others are arrays or one number."""
    rows = np.empty(np.shape(position), TOKENS)
    rows["position"], rows["first"], rows["end"] = position, first, end
    return rows


def row_bytes(planes: TableRows) -> int:
    """Returns the bytes of one token in all of these planes."""
    return int((planes["heads"] * planes["width"]).sum())


def numbers_of(rows: TableRows) -> Numbers:
    """Returns the same memory as plain numbers, row after row, for kernels on a device."""
    return rows.reshape(-1).view(np.int64)


def frozen(table: npt.NDArray[Any], dtype: npt.DTypeLike, *shape: int) -> npt.NDArray[Any]:
    """Returns the table in C order and read-only, copying it only if someone else could write to it.

    Args:
        table: The table.
        dtype: The required dtype.
        *shape: The required length of each axis; -1 accepts any length.

    Raises:
        TypeError: The dtype differs.
        ValueError: The shape differs.
    """
    if getattr(table, "dtype", None) != np.dtype(dtype):
        raise TypeError(f"expected a table of {np.dtype(dtype)}, got {getattr(table, 'dtype', type(table).__name__)}")
    axes = zip_longest(shape, table.shape)
    if any(have is None or wanted not in (-1, have) for wanted, have in axes):
        raise ValueError(f"expected a table of shape {shape}, got {table.shape}")
    if _is_frozen(table) and table.flags.c_contiguous:
        return table
    copy = table.copy(order="C")
    copy.flags.writeable = False
    return copy


def _is_frozen(table: npt.NDArray[Any]) -> bool:
    """Returns whether the array and everything that it is a view of are read-only."""
    base: Any = table
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, bytes)
