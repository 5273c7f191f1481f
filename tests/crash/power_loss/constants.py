"""How a tier is opened, and which page has which key."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec

from pagetier.tiers.lmdb import LmdbTier

FRAME: Final = 4096
SEED: Final = 8


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What LmdbTier is given, beside its folder."""

    cap: int
    frame: int = FRAME
    environments: int = 2

    def opened(self, folder: Path) -> LmdbTier:
        """The tier. Raises TierError."""
        return LmdbTier(folder, self.cap, self.frame, self.environments)


def key_of(number: int) -> bytes:
    """Of a page that is known by a number."""
    return hashlib.sha256(b"power %d" % number).digest()
