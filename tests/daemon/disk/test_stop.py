"""A stop that loses pages says how many, and why; one that loses none says nothing."""

from __future__ import annotations

import re
import shutil
import signal

from disk_corruption.file_anatomy import Anatomy, Part
from disk_daemon import DiskDaemon, Engine, TroubledDaemon
from pagetier.daemon.disk.status import Standing
from refused_starts import fill
from running_daemon import RunningDaemon

FRAMES = 64
PAGES = range(60)


def lost(daemon: RunningDaemon) -> tuple[int, str]:
    """How many pages were lost in the one stop that lost some, and why."""
    (line,) = [line for line in daemon.log.read_text().splitlines() if "event=disk_unwritten" in line]
    said = r'msg="(\d+) pages \(.*\) are released from memory and not known to be on disk: (.*)"'
    found = re.search(said + r" pages=(\d+) bytes=(\d+)", line)
    assert found, line
    assert "level=warning" in line
    assert found[1] == found[3]
    assert int(found[4]) == 60_000 * int(found[1])
    return int(found[1]), found[2]


def test_its_time_is_over() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--disk-stop", "500ms") as daemon:
        with Engine(daemon) as engine:
            engine.store_through(daemon, PAGES[:20])
            daemon.kill_worker(signal.SIGSTOP)
            engine.store(PAGES[20:])
        assert daemon.stop() == 0
        assert lost(daemon) == (40, "disk.stop = 500ms is over")
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == 20


def test_no_more_is_lost_than_is_told() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--disk-stop", "10ms") as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        told = lost(daemon)[0] if daemon.lines("disk_unwritten") else 0
        daemon.open()  # what was written in the worker's last moment, unheard, is told as lost, too
        assert daemon.snapshot().tiers.disk.pages >= len(PAGES) - told


def test_the_disk_is_too_small() -> None:
    with DiskDaemon(FRAMES, "4MiB") as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        told, why = lost(daemon)
        assert why == "disk.size is too small for all"
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == len(PAGES) - told


def test_the_disk_could_not_be_opened() -> None:
    with TroubledDaemon(FRAMES) as daemon:
        daemon.stop()
        shutil.rmtree(daemon.disk, ignore_errors=True)
        daemon.disk.write_text("a file")
        daemon.start()
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.until(lambda disk: disk.standing is Standing.DOWN), daemon.told()
        assert daemon.stop() == 0
        told, why = lost(daemon)
        assert told == len(PAGES)
        assert why.startswith("the disk tier is not open (") and "is a file" in why
        daemon.disk.unlink()
        daemon.open()


def test_a_tier_that_is_about_to_be_proven_is_waited_for() -> None:
    """The first worker finds it damaged: that is no reason why there can be no tier."""
    with DiskDaemon(FRAMES) as daemon:
        daemon.close_with(20)
        for file in daemon.data_files():
            with file.open("r+b") as opened:
                for page in Anatomy(file.read_bytes()).of(Part.HEADERS_LEAF):
                    opened.seek(page * 4096 + 10)
                    opened.write(b"\x04\x00")
        daemon.start()
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        assert daemon.lines("the next disk worker verifies it"), daemon.told()
        assert daemon.lines("disk_unwritten") == []
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == len(PAGES)


def test_nothing_is_lost() -> None:
    with DiskDaemon(FRAMES) as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        assert daemon.lines("disk_unwritten") == []
        daemon.open()


def test_without_a_disk_that_is_what_a_stop_is_for() -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        assert daemon.stop() == 0
        assert "disk_unwritten" not in daemon.log.read_text()
        daemon.start()
