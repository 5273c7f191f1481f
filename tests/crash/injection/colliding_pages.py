"""The pages of a sweep: numbered, small, and with the same home bucket, so that the dictionary displaces entries."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import numpy as np

from pagetier.client import Keys
from pagetier.shm._core import KEY_BYTES
from running_daemon import namespace

FRAME: Final = 16 << 10
FRAMES: Final = 32
PAGE: Final = 24_000
"""Two frames, and two parts of whole words."""
PAGES: Final = FRAMES // 2
SEED: Final = 7
SPACE: Final = namespace()
_HOME: Final = 5


def key_of(number: int) -> bytes:
    """Returns the key of a page; each group of four pages also shares a tag."""
    home, tag = _HOME.to_bytes(8, "little"), (number // 4).to_bytes(8, "little")
    return home + tag + sha256(b"%d" % number).digest()[:16]


def keys_of(numbers: Iterable[int]) -> Keys:
    """Returns a chain of pages."""
    keys = np.frombuffer(b"".join(map(key_of, numbers)), np.uint8).reshape(-1, KEY_BYTES)
    return SPACE.keys_of_hashes(keys ^ np.frombuffer(SPACE.digest, np.uint8))
