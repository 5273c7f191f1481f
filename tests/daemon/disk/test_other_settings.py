"""Tests that a worker keeps pages that only other settings read where the start did not see them, as on a hung disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import FRAMES, IN_LMDB, DiskDaemon
from eventually import eventually
from pagetier.shm.protocol import FetchOutcome
from running_daemon import RunningDaemon

SMALLER = ("--set", "arena.frame_size=32KiB")


@contextmanager
def hidden(daemon: DiskDaemon) -> Iterator[None]:
    """Replaces the folder by a file for the duration of the block: a start sees as little of it as of a hung disk."""
    away = daemon.disk.rename(daemon.disk.with_name("away"))
    daemon.disk.write_text("a file")
    yield
    daemon.disk.unlink()
    away.rename(daemon.disk)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (IN_LMDB, "8 pages with disk.store = files, not disk.store = lmdb: set the former value to keep these pages"),
        (SMALLER, "8 pages with arena.frame_size = 64KiB, not arena.frame_size = 32KiB: set the former value"),
    ],
    ids=["store", "frames"],
)
def test_pages_that_the_start_did_not_see_are_kept(given: tuple[str, ...], words: str) -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.close_with(8)
        with hidden(daemon):
            daemon.start(*given)
            daemon.wait_down("is a file")
        daemon.wait_down(f"{daemon.disk} has {words}")
        daemon.stop()
        daemon.open()
        with Engine(daemon) as engine:
            assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * len(numbers)


def test_a_start_with_fresh_discards_what_it_did_not_see() -> None:
    with DiskDaemon(FRAMES) as daemon:
        daemon.close_with(8)
        with hidden(daemon):
            daemon.start(*IN_LMDB, "--fresh")
            daemon.wait_down("is a file")
        daemon.wait_open()
        assert daemon.report().opened == "rebuilt empty: store was files, is lmdb"


def test_fresh_is_not_for_a_folder_that_a_reload_adds(tmp_path: Path) -> None:
    with DiskDaemon(FRAMES, disk=tmp_path / "full") as daemon:
        daemon.close_with(8)
    before = (tmp_path / "full" / "state").read_text()
    reloaded = RunningDaemon("1MiB", "64KiB", *IN_LMDB, "--fresh")
    reloaded.config.write_text(f'[disk]\npath = "{tmp_path}/new"\nsize = "64MiB"\n')
    with reloaded:
        reloaded.wait_disk_open()
        reloaded.reload(f'[disk]\npath = ["{tmp_path}/new", "{tmp_path}/full"]\nsize = "64MiB"\n')
        assert eventually(lambda: "8 pages with disk.store = files" in trouble_of(reloaded, tmp_path / "full"))
    assert (tmp_path / "full" / "state").read_text() == before


def trouble_of(daemon: RunningDaemon, folder: Path) -> str:
    """Returns why the device in a folder is down."""
    return next(device.trouble for device in daemon.snapshot().disk.devices if device.folder == str(folder))
