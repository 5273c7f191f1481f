"""Read-only copies of the tables that describe copies, so that they cannot change after validation."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt


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
