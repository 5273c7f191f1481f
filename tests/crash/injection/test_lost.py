"""Tests that a failed sync is remembered: the kernel reports it once, to one process, and the data is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb.verify import verify

from child_process import in_child
from injection.loop_mounts import SmallDevice, small_device
from pagetier.tiers.base import DoubtError, ReadOutcome
from pagetier.tiers.disk.store import DiskStore
from store_pages import keys_in, outcomes, outgoings, small_tier

KEPT = outgoings(range(60))
LOST = outgoings(range(1000, 1300))


@pytest.fixture
def device(tmp_path: Path) -> Iterator[SmallDevice]:
    with small_device(tmp_path, "24m") as device:
        yield device


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mount" / "tier"


def opened(folder: Path) -> DiskStore:
    return small_tier(folder, cap=16 << 20, environments=1)


def kept(folder: Path) -> DiskStore:
    """Returns a tier with pages that are on the disk."""
    tier = opened(folder)
    assert all(tier.write([], KEPT).stored)
    tier.sync()
    return tier


def lose(tier: DiskStore) -> None:
    assert all(tier.write([page.key for page in KEPT[:20]], LOST).stored)


def judge(device: SmallDevice, folder: Path) -> None:
    """Checks that the next process that opens the tier verifies it, and that it is clean by then."""
    device.clear()
    tier = opened(folder)
    assert tier.state().clean
    assert "as it was left" not in tier.state().opened
    held = keys_in(tier)
    tier.close()
    device.restart()
    wrong: list[str] = verify(str(folder / "0" / "data.mdb"), subdir=False)  # type: ignore[no-untyped-call]
    assert wrong == []
    tier = opened(folder)
    assert keys_in(tier) == held
    assert outcomes(tier, [page for page in (*KEPT, *LOST) if page.key in held]) <= {ReadOutcome.EXACT}
    tier.close()


def test_a_sync_that_fails_at_the_close_is_remembered(device: SmallDevice, folder: Path) -> None:
    tier = kept(folder)
    device.fill()
    lose(tier)
    with pytest.raises(DoubtError, match=r"No space left|Input/output error"):
        tier.close()
    judge(device, folder)


def test_a_sync_that_fails_at_the_open_after_a_death_is_remembered(device: SmallDevice, folder: Path) -> None:
    kept(folder).close()
    device.fill()

    def die() -> None:
        lose(opened(folder))
        os._exit(0)

    assert in_child(die) == 0
    with pytest.raises(DoubtError, match=r"No space left|Input/output error"):
        opened(folder)
    judge(device, folder)
