"""Tests that pages on disk outlive the daemon, however it ends, also if the configuration changes."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from bare_engine import Engine
from daemon_constants import PROGRAM
from disk_daemon import DiskDaemon, TroubledDaemon
from eventually import eventually
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import FetchOutcome
from refused_starts import pagetierd

FRAMES = 32
STOPPED_AT_ONCE = f"""
import os, signal
from pagetier.daemon import main
take = main.take
def take_and_be_stopped(request):
    os.kill(os.getpid(), signal.SIGTERM)
    return take(request)
main.take = take_and_be_stopped
{PROGRAM}
"""


def test_a_stop_writes_what_is_unwritten() -> None:
    with DiskDaemon(FRAMES) as daemon:
        with Engine(daemon) as engine:
            engine.store(range(FRAMES - 2))
            engine.store([100])
        assert daemon.stop() == 0
        assert daemon.leftovers() == []
        daemon.open()
        assert daemon.report().opened == "as it was left"
        assert daemon.report().clean
        with Engine(daemon) as engine:
            assert engine.available_pages(range(FRAMES - 2)) == (0, FRAMES - 2)
            assert engine.fetch(range(FRAMES // 2)) == [FetchOutcome.IN_MEMORY] * (FRAMES // 2)
            assert engine.places(range(FRAMES - 2)) == {"memory": FRAMES // 2, "disk": FRAMES // 2 - 2}
            assert engine.where(100) == "disk"


def test_after_a_refused_restart_unwritten_pages_stay_unwritten() -> None:
    with DiskDaemon(FRAMES) as daemon:
        with Engine(daemon) as engine:
            engine.store(range(FRAMES // 2))
        daemon.signal(signal.SIGUSR1)
        assert daemon.wait() == 0
        daemon.launch("--arena-size", "4MiB")
        assert daemon.wait() == Exit.UNFIT
        assert pagetierd("--name", daemon.name, "--release-memory").code == 0
        daemon.open()
        with Engine(daemon) as engine:
            assert engine.places(range(FRAMES // 2)) == {"nowhere": FRAMES // 2}


def test_a_stop_takes_no_longer_than_it_may() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.stop_timeout=1") as daemon:
        with Engine(daemon) as engine:
            engine.store(range(FRAMES))
        daemon.kill_worker(signal.SIGSTOP)
        assert daemon.stop() == 0
        assert daemon.lines("disk.stop_timeout = 1s is over"), daemon.log.read_text()
        daemon.open()


def resized(daemon: DiskDaemon) -> None:
    assert daemon.pagetier("resize", "--disk-size", "48MiB").exit_code == 0


def without_its_worker(daemon: DiskDaemon) -> None:
    daemon.kill_worker()


def as_soon_as_it_serves(daemon: DiskDaemon) -> None:
    daemon.kill()
    daemon.start()


def before_it_serves(daemon: DiskDaemon) -> None:
    daemon.kill()
    flags = ("--name", daemon.name, "--socket", str(daemon.socket), "--disk-path", str(daemon.disk))
    ended = pagetierd(*flags, "--disk-size", "64MiB", *daemon._arguments, code=STOPPED_AT_ONCE)
    assert ended.code == 0, ended.text
    daemon.start()


@pytest.mark.parametrize("interrupt", [resized, without_its_worker, as_soon_as_it_serves, before_it_serves])
def test_a_stop_waits_for_a_disk_that_is_being_opened(interrupt: Callable[[DiskDaemon], None]) -> None:
    with DiskDaemon(FRAMES) as daemon:
        with Engine(daemon) as engine:
            engine.store(range(FRAMES - 2))
        interrupt(daemon)
        assert daemon.stop() == 0
        daemon.open()
        with Engine(daemon) as engine:
            assert engine.places(range(FRAMES - 2)) == {"disk": FRAMES - 2}


def test_a_hand_over_keeps_memory_and_disk() -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.fill(3 * FRAMES)
        daemon.signal(signal.SIGUSR1)
        assert daemon.wait() == 0
        assert daemon.leftovers() != []
        daemon.open()
        with Engine(daemon) as engine:
            places = engine.places(numbers)
            assert places["nowhere"] == 0
            assert places["memory"] >= FRAMES - 2
            assert places["disk"] >= 2 * FRAMES
            assert engine.fetch(numbers[:8]) == [FetchOutcome.IN_MEMORY] * 8
            assert engine.places(numbers[:8]) == {"memory": 8}


def test_a_killed_daemon_takes_its_worker_along_and_the_next_finds_everything() -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.fill(3 * FRAMES)
        with Engine(daemon) as engine:
            for _ in range(2):
                pid = daemon.worker()
                daemon.kill()
                assert engine.places(numbers[-4:]) == {"memory": 4}
                daemon.open()
                assert daemon.worker() != pid
                assert daemon.findings() == []
                assert engine.places(numbers)["nowhere"] == 0
            engine.close()
            engine.attach()
            assert engine.fetch(numbers[:8]) == [FetchOutcome.IN_MEMORY] * 8
            assert engine.places(numbers[:8]) == {"memory": 8}
        assert eventually(lambda: workers(daemon) == [daemon.worker()]), "slots of the dead come back"


def workers(daemon: DiskDaemon) -> list[int]:
    return [slot.pid for slot in daemon.slots() if slot.name == "disk tier"]


def test_a_daemon_killed_while_it_reads_and_writes() -> None:
    with DiskDaemon(FRAMES) as daemon:
        numbers = daemon.fill(3 * FRAMES)
        with Engine(daemon) as engine:
            for turn in range(3):
                with Engine(daemon) as other:
                    other.ask_fetch(numbers[:10])
                    engine.store(range(1000 + 20 * turn, 1004 + 20 * turn))
                    daemon.kill()
                engine.close()
                daemon.open()
                engine.attach()
                assert daemon.findings() == []
                assert engine.available_pages(numbers[:10])[1] == 10
                # Pages of a dead process are unavailable for the time of the quarantine.
                assert eventually(lambda: engine.fetch(numbers[:10]) == [FetchOutcome.IN_MEMORY] * 10)
                assert engine.places(numbers[:10]) == {"memory": 10}


def test_pages_on_disk_are_absent_without_the_disk_and_back_with_it() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "index.entries=400") as daemon:
        numbers = daemon.fill(2 * FRAMES)
        daemon.kill()
        TroubledDaemon.start(daemon, "--disk-path", "", "--disk-size", "0")
        assert daemon.report().standing is Standing.NONE
        assert daemon.snapshot().tiers.disk.pages == 0
        assert daemon.findings() == []
        with Engine(daemon) as engine:
            assert engine.places(numbers)["disk"] == 0
        daemon.kill()
        daemon.open()
        with Engine(daemon) as engine:
            assert engine.places(numbers)["nowhere"] == 0


@pytest.mark.parametrize("size", ["8MiB", "128MiB"])
def test_segments_are_adopted_with_a_disk_of_another_size(size: str) -> None:
    with DiskDaemon(FRAMES, "32MiB", "--set", "index.entries=400") as daemon:
        numbers = daemon.fill(10 * FRAMES)
        assert daemon.snapshot().tiers.disk.pages == len(numbers)
        daemon.kill()
        daemon.open("--disk-size", size)
        report, kept = daemon.report(), daemon.snapshot().tiers.disk
        assert report.cap == int(size.removesuffix("MiB")) << 20
        assert daemon.findings() == []
        with Engine(daemon) as engine:
            assert engine.places(numbers[-FRAMES:])["nowhere"] == 0
            assert engine.fetch(numbers[-2 * FRAMES : -FRAMES])[0] == FetchOutcome.IN_MEMORY
        assert (kept.pages == len(numbers)) == (size == "128MiB")
        assert kept.bytes <= report.cap
        assert daemon.until(lambda disk: disk.file_bytes <= report.cap or disk.note), daemon.reported()


def test_an_index_with_fewer_entries_than_the_disk_holds_pages() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "index.entries=200") as daemon:
        numbers = daemon.fill(150)
        daemon.stop()
        daemon.open("--set", "index.entries=50")
        disk = daemon.snapshot().tiers.disk
        assert 30 <= disk.pages <= 50
        with Engine(daemon) as engine:
            assert engine.where(numbers[-1]) == "disk"  # the warmest ones are kept
            engine.store(range(1000, 1008))
            assert engine.places(range(1000, 1008)) == {"memory": 8}
