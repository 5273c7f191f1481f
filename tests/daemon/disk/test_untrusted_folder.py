"""Tests that damaged files are verified, rebuilt or missed, and never served with other bytes than were stored."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bare_engine import Engine, content_of
from disk_daemon import DiskDaemon
from eventually import eventually
from file_changes import flip_bit, write_at
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.shm.protocol import FetchOutcome

FRAMES = 16


def change_state(daemon: DiskDaemon, **news: Any) -> None:
    state = daemon.disk / "state"
    state.write_text(json.dumps(json.loads(state.read_text()) | news))


def found(daemon: DiskDaemon) -> DiskReport:
    """Restarts the daemon and returns how it found the folder, after checking that its log has one line about it."""
    before = len(daemon.lines("disk tier in"))
    daemon.open()
    report = daemon.report()
    assert eventually(lambda: daemon.lines("disk tier in")[before:])  # it comes after the status
    (line,) = daemon.lines("disk tier in")[before:]
    assert report.opened in line
    return report


@pytest.mark.parametrize(
    "harm",
    [
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: os.truncate(file, 0),
        Path.unlink,
        lambda file: write_at(file, 0, bytes(16384)),
    ],
    ids=["cut", "emptied", "removed", "overwritten"],
)
def test_a_file_damaged_while_it_was_closed_is_rebuilt(harm: Callable[[Path], None]) -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.close_with(24)
        harm(daemon.data_files()[0])
        assert "rebuilt empty in 1 of 2 parts" in found(daemon).opened
        with Engine(daemon) as engine:
            places = engine.places(numbers)
            assert places["disk"] > 0
            assert places["nowhere"] > 0
            for number in numbers:
                engine.fetch([number])
            assert engine.places(numbers)["memory"] > 0
            engine.goes_on(100)


def test_a_file_truncated_while_it_is_open_is_rebuilt() -> None:
    with DiskDaemon(64) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(160))
        restarts, worker = daemon.report().restarts, daemon.worker()
        for data in daemon.data_files():
            os.truncate(data, 40_000)
        for first in range(0, 96, 8):
            engine.fetch(range(first, first + 8), 5)
        daemon.wait_open(restarts + 1)
        assert daemon.worker() != worker
        assert "rebuilt empty" in daemon.report().opened, daemon.reported()
        assert daemon.findings() == []
        engine.goes_on(1000)
        disk = daemon.snapshot().tiers.disk
        places = engine.places(range(96))
        assert places["disk"] <= disk.pages
        for number in range(96):  # all pages that the index lists can be read
            if engine.where(number) == "disk":
                assert engine.fetch([number]) == [FetchOutcome.IN_MEMORY]


def test_another_size_of_frames_rebuilds_it() -> None:
    with DiskDaemon(FRAMES) as daemon:
        daemon.close_with(8)
        daemon.open("--set", "arena.frame_size=32KiB", "--fresh")
        assert "rebuilt empty: frame bytes was 65536, is 32768" in daemon.report().opened


@pytest.mark.parametrize(
    ("state", "opened"),
    [
        ({"boot": "another boot", "clean": True}, "as it was left"),
        ({"boot": "another boot", "clean": False}, "after an unclean host restart: proven sound in "),
        ({"format": 99}, "rebuilt empty: format was 99, is "),
    ],
)
def test_a_tier_is_kept_as_far_as_its_state_file_allows(state: dict[str, Any], opened: str) -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.close_with(8)
        change_state(daemon, **state)
        assert found(daemon).opened.startswith(opened)
        with Engine(daemon) as engine:
            if "rebuilt" in opened:
                assert engine.places(numbers) == {"nowhere": 8}
            else:
                assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8
                assert engine.places(numbers) == {"memory": 8}
            engine.goes_on(100)


def test_damaged_files_after_a_host_restart_are_rebuilt() -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.close_with(24)
        change_state(daemon, boot="another boot", clean=False)
        for data in daemon.data_files():
            write_at(data, 8192, os.urandom(max(0, data.stat().st_size - 8192)))
        assert "rebuilt empty: " in found(daemon).opened
        with Engine(daemon) as engine:
            assert engine.places(numbers) == {"nowhere": 24}
            engine.goes_on(100)


def flip(daemon: DiskDaemon, number: int) -> None:
    """Flips one bit of a stored page's bytes in the file."""
    content = content_of(number)[1000:2000]
    for data in daemon.data_files():
        at = data.read_bytes().find(content)
        if at >= 0:
            flip_bit(data, at + 500, 2)
            return
    raise AssertionError("the page is in no file")


@pytest.mark.parametrize("alive", [True, False])
def test_a_flipped_bit_is_a_miss_and_is_counted(alive: bool) -> None:
    with DiskDaemon(FRAMES) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(6 + 2 * FRAMES))
        if not alive:
            daemon.stop()
        flip(daemon, 3)
        if not alive:
            daemon.open()
            engine.close()
            engine.attach()
        outcomes = engine.fetch(range(6))
        assert outcomes == [FetchOutcome.IN_MEMORY] * 3 + [FetchOutcome.ABSENT] + [FetchOutcome.IN_MEMORY] * 2
        assert engine.available_pages(range(6)) == (3, 3)
        assert engine.where(3) == "nowhere"
        assert daemon.snapshot().disk_work.damaged == 1
        assert daemon.until(lambda disk: disk.damaged == 1)
        assert "damaged pages dropped: 1" in " ".join(daemon.pagetier("stats").output.split())
        assert "the device may be failing" in daemon.doctor()
        assert len(daemon.lines("cannot read a page")) == 1
        assert engine.store([3]) == b"\0"
        daemon.store_through(engine, range(1000, 1000 + 2 * FRAMES))
        assert engine.fetch([3]) == [FetchOutcome.IN_MEMORY]
        assert engine.where(3) == "memory"


def test_a_lowered_cap_holds_at_once() -> None:
    with DiskDaemon(64, "32MiB") as daemon:
        numbers = daemon.close_with(300)
        before = sum(data.stat().st_size for data in daemon.data_files())
        daemon.open("--disk-size", "8MiB", "--fresh")
        report = daemon.report()
        assert before > 8 << 20
        assert report.file_bytes <= 8 << 20 or "give them back" in report.note, daemon.reported()
        assert 0 < daemon.snapshot().tiers.disk.pages < 128
        with Engine(daemon) as engine:
            assert engine.where(numbers[-1]) == "disk"
            assert engine.where(numbers[0]) == "nowhere"
            assert engine.fetch(numbers[-8:]) == [FetchOutcome.IN_MEMORY] * 8
            engine.goes_on(1000)


def test_an_error_that_a_worker_cannot_record_is_passed_to_the_next_one() -> None:
    """Its files were replaced, and the state file that should record this cannot be opened."""
    with DiskDaemon(FRAMES) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(8))
        restarts = daemon.report().restarts
        resource.prlimit(daemon.worker(), resource.RLIMIT_NOFILE, (0, 0))
        data = daemon.data_files()[0]
        shutil.copy(data, daemon.disk / "copy")
        (daemon.disk / "copy").rename(data)
        daemon.wait_open(restarts + 1)
        assert daemon.report().opened.startswith("after an unexpected failure: proven sound in "), daemon.reported()
        assert len(daemon.lines("was replaced while it was open")) == 1
