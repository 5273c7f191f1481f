"""The settings of the recorded tiers, and the keys of their pages."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from pagetier.tiers.lmdb import LmdbTier

FRAME: Final = 4096
SEED: Final = 8


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an LmdbTier, without its folder."""

    cap: int
    frame: int = FRAME
    environments: int = 2

    def opened(self, folder: Path) -> LmdbTier:
        """Returns the opened tier. Raises TierError."""
        return LmdbTier(folder, self.cap, self.frame, self.environments)


def key_of(number: int) -> bytes:
    """Returns the key of the page with a number."""
    return hashlib.sha256(b"power %d" % number).digest()
