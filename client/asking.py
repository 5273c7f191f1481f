"""What a client asks for room with: the namespace as the index knows it, and a size for each page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Namespace
from pagetier.shm.protocol import Space


def space_of(namespace: Namespace) -> Space:
    """As the index knows it."""
    return Space(namespace.digest, namespace.name, namespace.page_tokens)


def packed_sizes(sizes: int | Sequence[int] | npt.NDArray[np.uint64], count: int) -> bytes:
    """Raises ValueError where the number of sizes is another than that of the pages, or one is below 0."""
    try:
        given = np.asarray(sizes, dtype="<u8")
    except OverflowError as error:
        raise ValueError("a page's size is a number of bytes below 2**64") from error
    if given.ndim and given.shape != (count,):
        raise ValueError(f"{len(given)} sizes for {count} pages")
    return np.broadcast_to(given, count).tobytes()
