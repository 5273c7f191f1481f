"""The time over which the lookups of a cache count in what `pagetier advise` shows."""

from __future__ import annotations

from typing import Final

LOOKUP_WINDOW_S: Final = 86400.0
"""Lookups of this age count 1/e, older ones less."""
