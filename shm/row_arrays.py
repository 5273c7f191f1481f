"""The rows of the core's structs as arrays of numpy. Apart from `page_rows`, for processes that do without numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pagetier.shm._core import KEY_BYTES, StructLayout


def dtype_of(layout: StructLayout) -> np.dtype[np.void]:
    """Returns the dtype of an array of unsigned numbers and bytes with this layout."""
    names, offsets, sizes = zip(*layout.fields, strict=True)
    formats = [f"<u{size}" if size <= 8 else f"V{size}" for size in sizes]
    form: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": layout.size}
    dtype: np.dtype[np.void] = np.dtype(form)
    return dtype


def keys_of(column: bytes) -> npt.NDArray[np.void]:
    """Returns the keys of pages in a column of the core."""
    return np.frombuffer(column, f"V{KEY_BYTES}")


def entries_of(column: bytes) -> npt.NDArray[np.uint32]:
    """Returns the entries of pages in a column of the core."""
    return np.frombuffer(column, np.uint32)


def serials_of(column: bytes) -> npt.NDArray[np.uint64]:
    """Returns the serials of pages in a column of the core."""
    return np.frombuffer(column, np.uint64)


def sizes_of(column: bytes) -> npt.NDArray[np.uint64]:
    """Returns the sizes of pages in a column of the core."""
    return np.frombuffer(column, np.uint64)


def flags_of(column: bytes | bytearray) -> npt.NDArray[np.uint8]:
    """Returns the flags or codes of pages, a byte each."""
    return np.frombuffer(column, np.uint8)
