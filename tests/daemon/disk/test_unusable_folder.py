"""Tests folders that cannot be used or cannot be trusted: engines continue, and administrators are informed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon, TroubledDaemon
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.protocol import FetchOutcome
from pagetier.tiers.base import TierError
from pagetier.tiers.disk import file_system

FRAMES = 16
ROOT = os.geteuid() == 0


def assert_reported(daemon: DiskDaemon, *words: str) -> None:
    """Asserts that the statistics, doctor and the log name the problem."""
    assert daemon.until(lambda disk: all(word in disk.trouble for word in words)), daemon.reported()
    table = " ".join(daemon.pagetier("stats").output.split())
    spoken = daemon.doctor()
    flushed = daemon.pagetier("flush", "--to-disk")
    assert flushed.exit_code == 1
    for word in words:
        assert word in table
        assert word in spoken
        assert word in daemon.log.read_text()
        assert word in flushed.output
    assert any(line.startswith("problem  disk") for line in spoken.splitlines()), spoken


def test_the_folder_is_a_file() -> None:
    daemon = TroubledDaemon(FRAMES)
    daemon.disk.write_text("a file")
    with daemon, Engine(daemon) as engine:
        assert_reported(daemon, "cannot be the disk tier's folder", "is a file")
        engine.goes_on(0)
        assert daemon.report().standing is Standing.DOWN
        assert daemon.until(lambda disk: disk.restarts >= 2), daemon.reported()
        assert len(daemon.lines("no disk tier")) == 1, "each further worker fails for the same reason"
        assert daemon.disk.read_text() == "a file"
        daemon.disk.unlink()
        daemon.wait_open()
        assert daemon.report().trouble == ""


@pytest.mark.skipif(not ROOT, reason="other users may not write there anyway")
@pytest.mark.parametrize("there", ["/proc", "/sys"])
def test_the_folder_is_where_no_file_system_has_room_for_one(there: str) -> None:
    with pytest.raises(TierError) as error:
        file_system.make(Path(there) / "pages" / "0")
    assert str(error.value).endswith(f": no folder can be created in {there}; set another disk.path")
    assert f"{there}/pages/0 cannot be used by the disk tier: " in str(error.value)


def test_the_folder_holds_other_things() -> None:
    daemon = TroubledDaemon(FRAMES)
    daemon.disk.mkdir()
    (daemon.disk / "thesis.tex").write_text("years of work")
    with daemon, Engine(daemon) as engine:
        assert_reported(daemon, "contains other files (thesis.tex)", "folder of its own")
        engine.goes_on(0)
        assert (daemon.disk / "thesis.tex").read_text() == "years of work"


@pytest.mark.skipif(not ROOT, reason="only root can mount")
def test_the_folder_is_read_only() -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.close_with(8)
        if subprocess.run(["mount", "--bind", "-o", "ro", daemon.disk, daemon.disk], check=False).returncode:
            daemon.open()
            pytest.skip("mount is refused here")
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", daemon.disk], check=False)
            daemon.start()
            with Engine(daemon) as engine:
                assert_reported(daemon, "cannot be used by the disk tier", "Read-only file system", "ReadWritePaths=")
                engine.goes_on(100)
        finally:
            subprocess.run(["umount", "--lazy", daemon.disk], check=True)
        daemon.wait_open()
        with Engine(daemon) as engine:
            assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8
            assert engine.places(numbers) == {"memory": 8}


def test_another_daemon_has_the_folder() -> None:
    with DiskDaemon(FRAMES) as daemon, TroubledDaemon(FRAMES) as other:
        other.stop()
        other.disk = daemon.disk
        other.start()
        with Engine(other) as engine, Engine(daemon) as owner:
            assert_reported(other, str(daemon.disk), "in use")
            engine.goes_on(0)
            daemon.store_through(owner, range(8))
        daemon.stop()
        other.wait_open()
        assert other.snapshot().tiers.disk.pages >= 8
        daemon.disk = Path(daemon.folder.name) / "another"
        daemon.open()
