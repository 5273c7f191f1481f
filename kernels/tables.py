"""Tables of numbers as the copies read them: checked once, so nobody changes them afterwards."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt


def frozen(table: npt.NDArray[Any], dtype: type[np.generic], *shape: int) -> npt.NDArray[Any]:
    """The table in C order and read-only, a copy if anybody could write to it. -1 in the shape: as many as there are.

    Raises TypeError for another dtype, ValueError for another shape.
    """
    if getattr(table, "dtype", None) != dtype:
        raise TypeError(f"a table of {np.dtype(dtype)} is wanted, not {getattr(table, 'dtype', type(table).__name__)}")
    axes = zip_longest(shape, table.shape)
    if any(have is None or wanted not in (-1, have) for wanted, have in axes):
        raise ValueError(f"a table of shape {shape} is wanted, not {table.shape}")
    if _is_frozen(table) and table.flags.c_contiguous:
        return table
    copy = table.copy(order="C")
    copy.flags.writeable = False
    return copy


def _is_frozen(table: npt.NDArray[Any]) -> bool:
    """Read-only, and so is what it is a view of."""
    base: Any = table
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return False
        base = base.base
    return base is None or isinstance(base, bytes)
