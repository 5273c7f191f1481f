"""Finds many pages without keeping other requests waiting."""

from __future__ import annotations

from typing import Protocol

from pagetier.daemon.common import loop_clock
from pagetier.daemon.stats.page_lookup import AT_ONCE
from pagetier.shm.page_rows import PAGE_KEYS


class PageLocator(Protocol):
    """What knows the tiers of pages: an Observer."""

    def locate(self, keys: bytes, /) -> bytes:
        """Returns the tiers of each page."""


async def located(observer: PageLocator, keys: bytes) -> bytes:
    """Returns the tiers of each page. Other requests are served between slices."""
    found = bytearray()
    for part in PAGE_KEYS.batches(keys, AT_ONCE):
        found += observer.locate(part)
        await loop_clock.give_way()
    return bytes(found)
