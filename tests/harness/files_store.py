"""Tiers of the files store with one environment, and where their pages lie."""

from __future__ import annotations

from pathlib import Path

from pagetier.tiers.base import Outgoing
from pagetier.tiers.frame_files import FilesStore
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from store_pages import CAP, FRAME, outgoings


def opened(folder: Path, cap: int = CAP) -> FilesStore:
    return FilesStore(folder / "tier", cap, FRAME, 1)


def only(tier: FilesStore) -> FilesEnvironment:
    (environment,) = tier._environments
    assert isinstance(environment, FilesEnvironment)
    return environment


def slots_of(tier: FilesStore, page: Outgoing) -> list[int]:
    """Returns the slots that the page's record names."""
    environment = only(tier)
    with environment.reading() as txn:
        header = environment.unpack(page.key, txn.get(page.key, memoryview(b""), db=environment.pages))
    return [slot for extent in header.extents for slot in range(extent.page, extent.page + extent.frames)]


def fill(tier: FilesStore, first: int) -> list[Outgoing]:
    """Stores pages until there is no room."""
    pages = outgoings(range(first, first + tier.capacity // 3 + 5))
    return [page for page, stored in zip(pages, tier.write([], pages).stored, strict=True) if stored]
