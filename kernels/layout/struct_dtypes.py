"""The tables of a copy as structured arrays, whose rows are structs of the C core (shm/core/client/copy_tables.h).

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
