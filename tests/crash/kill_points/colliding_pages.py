"""The pages of a sweep: numbered, small, and all with one home in the dictionary, so that it has to move them about."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Final

import numpy as np

from pagetier.client import Keys
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
    """Four pages each share a tag, too."""
    home, tag = _HOME.to_bytes(8, "little"), (number // 4).to_bytes(8, "little")
    return home + tag + sha256(b"%d" % number).digest()[:16]


def keys_of(numbers: Iterable[int]) -> Keys:
    """A chain of them."""
    keys = np.frombuffer(b"".join(map(key_of, numbers)), np.uint8).reshape(-1, 32)
    return SPACE.keys_of_hashes(keys ^ np.frombuffer(SPACE.digest, np.uint8))
