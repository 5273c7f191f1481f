"""Tests a device that fails, hangs or is full: engines get exact bytes or a miss, and nothing exceeds its timeout."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import DiskDaemon, TroubledDaemon
from eventually import PATIENCE_S, eventually
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.protocol import FetchOutcome
from small_file_systems import small_file_system

FRAMES = 16
pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@contextmanager
def faults(pid: int, *rules: str) -> Iterator[None]:
    """Makes system calls of all threads of a process fail by these rules until the end of the block."""
    calls = ",".join(dict.fromkeys(call for rule in rules for call in rule.partition(":")[0].split(",")))
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    command += [word for rule in rules for word in ("-e", f"inject={rule}")]
    tracer = subprocess.Popen([*command, "-p", str(pid)], stderr=subprocess.PIPE)
    try:
        if not eventually(lambda: _traced(pid) or tracer.poll() is not None) or tracer.poll() is not None:
            pytest.skip("strace may not attach here")
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _traced(pid: int) -> bool:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return bool(tasks) and all("TracerPid:\t0\n" not in (task / "status").read_text() for task in tasks)
    except OSError:
        return False


def of_files(rule: str) -> str:
    return f"pwrite64,pwritev,pwritev2,fdatasync,msync:{rule}"


_LATE = """
import sys, time
from pathlib import Path
if "pagetier.tiers.worker" in sys.orig_argv:
    first, wait = (Path(__file__).with_name(name) for name in ("first", "wait"))
    while wait.exists():
        time.sleep(0.02)
    time.sleep({seconds}) if first.exists() else first.touch()
"""


@contextmanager
def no_successor(folder: Path) -> Iterator[None]:
    """Keeps new workers from starting until the end of the block, as one would not meet the errors of the first."""
    wait = folder / "wait"
    wait.touch()
    try:
        yield
    finally:
        wait.unlink()


@pytest.mark.parametrize("late_s", [0, 4])
def test_failing_writes_are_reported_and_affect_only_the_disk_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: int
) -> None:
    """The worker that met the errors ends. Its successor, which verifies the files, starts `late_s` seconds later."""
    (tmp_path / "sitecustomize.py").write_text(_LATE.format(seconds=late_s))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with DiskDaemon(FRAMES, "64MiB", "--set", "disk.write=through") as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(8))
        with no_successor(tmp_path), faults(daemon.worker(), of_files("error=EIO")):
            engine.goes_on(100)
            assert daemon.until(lambda disk: "Input/output error" in disk.trouble), daemon.reported()
            assert "Input/output error" in daemon.doctor()
            flushed = daemon.pagetier("flush", "--to-disk")
            assert flushed.exit_code == 1
            assert "Input/output error" in flushed.output
            assert len(daemon.lines("Input/output error")) < 12, daemon.reported()
        engine.store(range(300, 308))
        assert daemon.until(lambda disk: disk.standing is Standing.OPEN and not disk.trouble), daemon.reported()
        flushed = daemon.pagetier("flush", "--to-disk")
        assert flushed.exit_code == 0, flushed.output
        assert engine.available_pages(range(300, 308))[1] == 8
        assert not daemon.report().trouble
        assert daemon.lines("the next disk worker verifies it"), daemon.reported()
        assert daemon.findings() == []


def test_reads_that_fail_are_misses() -> None:
    with DiskDaemon(FRAMES) as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(4 * FRAMES))
        worker = daemon.worker()
        with faults(worker, "preadv,preadv2,pread64:error=EIO"):
            outcomes = engine.fetch(range(8), PATIENCE_S)
            assert set(outcomes) <= {FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT}
            engine.goes_on(1000)
            engine.places(range(4 * FRAMES))
        daemon.wait_open()
        for number in range(8):
            assert engine.fetch([number], PATIENCE_S) in ([FetchOutcome.IN_MEMORY], [FetchOutcome.ABSENT])
        assert engine.places(range(8))["memory"] > 0
        assert daemon.findings() == []


def test_a_stalled_disk_delays_no_engine() -> None:
    # The fetch keeps 8 frames and the writes up to a quarter of the arena; a store of 6 pages must fit beside them.
    frames = 2 * FRAMES
    with DiskDaemon(frames, "64MiB", "--set", "disk.stop_timeout=1") as daemon, Engine(daemon) as engine:
        daemon.store_through(engine, range(4 * frames))
        calls = "pwrite64,pwritev,pwritev2,preadv,preadv2,pread64,fdatasync,msync"
        longer_than_engines_wait = f"{calls}:delay_enter={10_000_000 * PATIENCE_S:.0f}"
        with faults(daemon.worker(), longer_than_engines_wait):
            engine.ask_fetch(range(8), 0.2)
            answer = engine.answer()
            assert len(answer.outcomes) == 8 and FetchOutcome.PENDING in answer.outcomes
            assert "the timeout passed" in answer.reason
            engine.goes_on(1000)
            assert daemon.findings() == []
        assert eventually(lambda: engine.fetch(range(8)) == [FetchOutcome.IN_MEMORY] * 8), daemon.reported()
        assert engine.places(range(8)) == {"memory": 8}


def stored_until_trouble(daemon: DiskDaemon, engine: Engine) -> int:
    """Stores pages until the daemon reports a problem with its disk, and returns how many."""
    firsts = itertools.count(0, 8)

    def troubled_by_more() -> bool:
        first = next(firsts)
        engine.store(range(first, first + 8))
        return bool(daemon.report().trouble)

    assert eventually(troubled_by_more), daemon.reported()
    return next(firsts)


def test_a_file_system_that_fills_up() -> None:
    with small_file_system("8m") as folder:
        daemon = DiskDaemon(FRAMES)
        daemon.disk = folder / "disk"
        with daemon, Engine(daemon) as engine:
            pages = stored_until_trouble(daemon, engine)
            assert "is full" in daemon.log.read_text(), daemon.reported()
            spoken = daemon.doctor()
            assert "is tmpfs: its pages do not survive a reboot" in spoken
            assert "warning  disk room" in spoken and "problem  disk tier" in spoken
            engine.goes_on(50_000)
            for number in range(pages):
                if engine.where(number) == "disk":
                    assert engine.fetch([number], PATIENCE_S) in ([FetchOutcome.IN_MEMORY], [FetchOutcome.ABSENT])
                    engine.where(number)
            assert daemon.findings() == []
            assert len(daemon.log.read_text().splitlines()) < 60, daemon.reported()


def test_a_file_system_without_room_for_anything() -> None:
    with small_file_system("64k") as folder:
        daemon = TroubledDaemon(FRAMES)
        (folder / "ballast").write_bytes(bytes(60_000))
        daemon.disk = folder / "disk"
        with daemon, Engine(daemon) as engine:
            daemon.wait_down()
            assert "No space left" in daemon.report().trouble or "is full" in daemon.report().trouble, daemon.reported()
            assert "problem  disk tier" in daemon.doctor()
            engine.goes_on(0)
            (folder / "ballast").unlink()
