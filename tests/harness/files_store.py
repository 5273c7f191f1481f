"""Tiers of the files store with one environment, and where their pages lie."""

from __future__ import annotations

from pathlib import Path

from pagetier.tiers.base import Outgoing
from pagetier.tiers.frame_files import FilesTier
from pagetier.tiers.frame_files.files_environment import FilesEnvironment
from store_pages import CAP, FRAME, outgoings


def opened(folder: Path, cap: int = CAP) -> FilesTier:
    return FilesTier(folder / "tier", cap, FRAME, 1)


def only(tier: FilesTier) -> FilesEnvironment:
    (environment,) = tier._environments
    assert isinstance(environment, FilesEnvironment)
    return environment


def slots_of(tier: FilesTier, page: Outgoing) -> list[int]:
    """Returns the slots that the page's record names."""
    environment = only(tier)
    with environment.reading() as txn:
        header = environment.unpack(page.key, txn.get(page.key, memoryview(b""), db=environment.pages))
    return [slot for run in header.runs for slot in range(run.page, run.page + run.frames)]


def fill(tier: FilesTier, first: int) -> list[Outgoing]:
    """Stores pages until there is no room."""
    pages = outgoings(range(first, first + tier.room // 3 + 5))
    return [page for page, stored in zip(pages, tier.write([], pages).stored, strict=True) if stored]
