"""Pages that contain their number, the same in each process."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pagetier.client import Keys, Namespace

PAGE_TOKENS, PAGE_BYTES = 16, 60_000


def keys(pages: int) -> Keys:
    """Returns the keys of the first pages."""
    space = Namespace(model="test/contained", dtype="float32", page_tokens=PAGE_TOKENS)
    return space.keys(range(PAGE_TOKENS * pages))


def page(number: int) -> npt.NDArray[np.uint8]:
    """Returns the content of a page."""
    return np.random.default_rng(number).integers(0, 256, PAGE_BYTES, dtype=np.uint8)
