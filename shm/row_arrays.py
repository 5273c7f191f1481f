"""The rows of the core's structs as arrays of numpy. Apart from `page_rows`, for processes that do without numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from pagetier.shm._core import StructLayout


def dtype_of(layout: StructLayout) -> np.dtype[np.void]:
    """Returns the dtype of an array of unsigned numbers and bytes with this layout."""
    names, offsets, sizes = zip(*layout.fields, strict=True)
    formats = [f"<u{size}" if size <= 8 else f"V{size}" for size in sizes]
    form: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": layout.size}
    dtype: np.dtype[np.void] = np.dtype(form)
    return dtype
