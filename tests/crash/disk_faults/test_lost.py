"""Tests that a failed sync is remembered: the kernel reports it once, to one process, and the data is lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lmdb.verify import verify

from disk_faults.loop_mounts import ext4, mount_again, tmpfs
from forked_child import in_child
from pagetier.tiers.base import DoubtError, ReadOutcome
from pagetier.tiers.lmdb import LmdbTier
from tier_pages import keys_in, outcomes, outgoings, small_tier

KEPT = outgoings(range(60))
LOST = outgoings(range(1000, 1300))


class Device:
    """A device smaller than the file system on it, which accepts more data than the device can hold."""

    def __init__(self, folder: Path, mount: Path) -> None:
        self._image = folder / "image"
        self._filler = folder / "filler"
        self._mount = mount

    def fill(self) -> None:
        """Fills the device to its last block."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                return

    def clear(self) -> None:
        """Frees the device again."""
        self._filler.unlink()

    def restart(self) -> None:
        """Mounts the file system again, without the page cache."""
        mount_again(self._image, self._mount)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    with tmpfs(tmp_path / "device", "24m") as folder, ext4(folder / "image", tmp_path / "mount") as mount:
        yield Device(folder, mount)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "mount" / "tier"


def opened(folder: Path) -> LmdbTier:
    return small_tier(folder, cap=16 << 20, environments=1)


def kept(folder: Path) -> LmdbTier:
    """Returns a tier with pages that are on the disk."""
    tier = opened(folder)
    assert all(tier.write([], KEPT).stored)
    tier.sync()
    return tier


def lose(tier: LmdbTier) -> None:
    assert all(tier.write([page.key for page in KEPT[:20]], LOST).stored)


def judge(device: Device, folder: Path) -> None:
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


def test_a_sync_that_fails_at_the_close_is_remembered(device: Device, folder: Path) -> None:
    tier = kept(folder)
    device.fill()
    lose(tier)
    with pytest.raises(DoubtError, match=r"No space left|Input/output error"):
        tier.close()
    judge(device, folder)


def test_a_sync_that_fails_at_the_open_after_a_death_is_remembered(device: Device, folder: Path) -> None:
    kept(folder).close()
    device.fill()

    def die() -> None:
        lose(opened(folder))
        os._exit(0)

    assert in_child(die) == 0
    with pytest.raises(DoubtError, match=r"No space left|Input/output error"):
        opened(folder)
    judge(device, folder)
