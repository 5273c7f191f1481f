"""Tests that a stop that loses pages logs how many, and why, and that any other stop logs nothing about it."""

from __future__ import annotations

import os
import re
import signal

import pytest

from bare_engine import Engine
from disk_corruption.file_anatomy import Anatomy, Part
from disk_daemon import DiskDaemon, TroubledDaemon
from eventually import eventually
from file_changes import write_at
from pagetier.shm._core import ReserveOutcome
from pagetier.shm.exit_codes import Exit
from refused_starts import pagetierd
from running_daemon import RunningDaemon

FRAMES = 64
PAGES = range(60)


def lost(daemon: RunningDaemon) -> tuple[int, str]:
    """Returns how many pages were lost in the one stop that lost some, and why."""
    (line,) = daemon.lines("event=disk_unwritten")
    said = r'msg="(\d+) pages \(.*\) released from memory, not known to be on disk: (.*)"'
    found = re.search(said + r" pages=(\d+) bytes=(\d+)", line)
    assert found, line
    assert "level=warning" in line
    assert found[1] == found[3]
    assert int(found[4]) == 60_000 * int(found[1])
    return int(found[1]), found[2]


def test_a_stop_logs_that_its_time_was_too_short() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.stop_timeout=500ms") as daemon:
        with Engine(daemon) as engine:
            daemon.store_through(engine, PAGES[:20])
            daemon.kill_worker(signal.SIGSTOP)
            engine.store(PAGES[20:])
        assert daemon.stop() == 0
        assert lost(daemon) == (40, "disk.stop_timeout = 500ms is over")
        assert len(daemon.lines("event=disk_worker_killed")) == 1
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == 20


def test_a_stop_loses_no_more_pages_than_it_logs() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.stop_timeout=10ms") as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        count = lost(daemon)[0] if daemon.lines("disk_unwritten") else 0
        daemon.open()  # pages written in the worker's last moment, without a report, count as lost, too
        assert daemon.snapshot().tiers.disk.pages >= len(PAGES) - count


def test_a_stop_logs_that_the_disk_is_too_small() -> None:
    with DiskDaemon(FRAMES, "4MiB") as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        count, why = lost(daemon)
        assert why == "disk.size is too small for all"
        assert count < len(PAGES)
        daemon.open()  # as above, pages that were written without a report count as lost
        assert daemon.snapshot().tiers.disk.pages >= len(PAGES) - count


def test_a_stop_does_not_wait_for_a_disk_that_cannot_be_opened_and_logs_the_loss() -> None:
    daemon = TroubledDaemon(FRAMES, "64MiB", "--set", "disk.stop_timeout=1h")
    daemon.disk.write_text("a file")
    with daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES)
        daemon.wait_down()
        assert daemon.stop() == 0
        count, why = lost(daemon)
        assert count == len(PAGES)
        assert why.startswith("the disk tier is not open (") and "is a file" in why
        daemon.disk.unlink()
        daemon.open()


def test_a_stop_waits_for_a_tier_that_is_about_to_be_verified() -> None:
    """The first worker finds the tier damaged; the next one verifies and opens it."""
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.store=lmdb") as daemon:
        daemon.close_with(20)
        for file in daemon.data_files():
            for page in Anatomy(file.read_bytes()).of(Part.HEADERS_LEAF):
                write_at(file, page * 4096 + 10, b"\x04\x00")
        daemon.start()
        with Engine(daemon) as engine:
            engine.store(PAGES)
        assert daemon.stop() == 0
        assert daemon.lines("the next disk worker verifies it"), daemon.reported()
        assert daemon.lines("disk_unwritten") == []
        daemon.open()
        assert daemon.snapshot().tiers.disk.pages == len(PAGES)


def test_a_start_during_a_stop_says_that_the_stop_takes_its_time() -> None:
    with DiskDaemon(FRAMES, "64MiB") as daemon:
        with Engine(daemon) as engine:
            daemon.store_through(engine, PAGES[:20])
            worker = daemon.kill_worker(signal.SIGSTOP)
            engine.store(PAGES[20:])
            daemon.signal(signal.SIGTERM)
            assert eventually(lambda: daemon.snapshot().daemon.progress < 1)
            started = pagetierd("--name", daemon.name, "--socket", f"{daemon.socket}.other")
            assert started.code == Exit.REFUSED
            stopping = f"the daemon that uses segments {daemon.name!r} is stopping, with 2.3 MiB to write to its disk"
            assert started.reported == f"{stopping}: start again when it has ended, at most 30s (disk.stop_timeout)"
            assert set(engine.store([1000])) == {ReserveOutcome.REFUSED_FULL}
            os.kill(worker, signal.SIGCONT)
        assert daemon.wait() == 0
        assert daemon.lines("disk_unwritten") == []


@pytest.mark.parametrize("kind", [DiskDaemon, RunningDaemon])
def test_a_stop_without_loss_or_without_a_disk_logs_nothing_about_it(kind: type[RunningDaemon]) -> None:
    with kind() as daemon:
        with Engine(daemon) as engine:
            engine.store(PAGES[:12])
        assert daemon.stop() == 0
        assert daemon.lines("disk_unwritten") == []
        daemon.start()
