"""Tests the measurement of a disk whose folders disappear at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oracle.samples import taken
from running_daemon import RunningDaemon
from simulator.sampling import readers

_BLOCK = 512


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the folders "gone" and "stays". "gone" disappears when its content is about to be listed."""
    disk = tmp_path / "disk"
    for name in ("gone", "stays"):
        (disk / name).mkdir(parents=True)
        (disk / name / "lock.mdb").write_bytes(b"content")
    monkeypatch.setattr(os, "scandir", _without(disk / "gone", os.scandir))
    return disk


def _without(gone: Path, scandir: Callable[..., Any]) -> Callable[..., Any]:
    def listed(path: Any) -> Any:
        if str(path) == str(gone):
            gone.rename(gone.parents[1] / "away")
        return scandir(path)

    return listed


def test_files_in_a_folder_that_disappears_are_not_counted(disk: Path) -> None:
    with RunningDaemon("1MiB", "64KiB") as daemon:
        sample = taken(daemon._observer(), daemon.name, disk)
    assert not (disk / "gone").exists()
    counted = (disk / "stays", disk / "stays/lock.mdb", disk.with_name("away"))  # the folder itself was still there
    assert sample.disk == _BLOCK * sum(path.stat().st_blocks for path in counted)


def test_readers_below_a_folder_that_disappears_are_not_counted(disk: Path) -> None:
    assert readers(disk) == 0
    assert not (disk / "gone").exists()
