"""Tests what commands say while the daemon starts, serves and stops, against real daemons."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest
from click.testing import CliRunner, Result

from disk_daemon import FRAME, DiskDaemon
from eventually import eventually
from pagetier.daemon.cli import main, stats
from pagetier.daemon.cli.daemon_connection import Unreachable
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace
from virtual_clock import VirtualClock

ARENA = "256MiB"
_WAITS = """
import time
from pathlib import Path
from pagetier.daemon.host import prefault

def populated_later(work, offset):
    while offset and Path(__file__).with_name("wait").exists():
        time.sleep(0.01)
    return populated(work, offset)

populated, prefault._Work._populated = prefault._Work._populated, populated_later
"""
"""Lets a daemon populate no more than the first piece of the arena while the file `wait` exists."""


def pagetier(command: str, socket: Path, *more: str) -> Result:
    return CliRunner().invoke(main, [command, "--socket", str(socket), *more])


def daemon_stats(socket: Path) -> dict[str, Any]:
    result = pagetier("stats", socket, "--json")
    values: dict[str, Any] = json.loads(result.stdout)["daemon"] if result.exit_code == 0 else {}
    return values


@pytest.fixture
def wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a file: daemons do not serve before it is removed."""
    (tmp_path / "sitecustomize.py").write_text(_WAITS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    file = tmp_path / "wait"
    file.touch()
    return file


class StartingDaemon(RunningDaemon):
    """A daemon that is still starting when the block begins."""

    def __enter__(self) -> Self:
        self.launch()
        return self


def test_stats_shows_how_far_the_arena_is_populated_and_wait_waits_for_it(wait: Path) -> None:
    with StartingDaemon(ARENA, "1MiB") as daemon:
        assert eventually(lambda: bool(daemon_stats(daemon.socket)))
        first = daemon_stats(daemon.socket)
        assert first["phase"] == "starting" and 0 <= first["progress"] < 1
        threading.Timer(0.5, wait.unlink).start()
        done = pagetier("stats", daemon.socket, "--wait", "60s", "--short")
        assert (done.exit_code, done.output.startswith("serving; ")) == (Exit.OK, True) and not wait.exists()
        last = daemon_stats(daemon.socket)
        assert (last["phase"], last["progress"]) == ("serving", 1.0)
        daemon.client().close()


def test_wait_says_why_engines_cannot_attach(tmp_path: Path) -> None:
    done = pagetier("stats", tmp_path / "none.sock", "--wait", "0s")
    assert done.exit_code == Exit.UNREACHABLE
    assert "no daemon" in done.output
    wrong = pagetier("stats", tmp_path / "none.sock", "--wait", "soon")
    assert wrong.exit_code == Exit.USAGE and "soon" in wrong.output


@pytest.mark.parametrize(("seconds", "asked"), [(0, [5.0]), (2, [2.0]), (8, [5.0, 2.9])])
def test_a_daemon_that_hangs_is_waited_for_no_longer_than_the_time(
    seconds: float, asked: list[float], virtual_clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except by 0s, which asks once."""
    patience = list[float]()

    def hangs(socket: Path, *, patience_s: float) -> NoReturn:
        patience.append(round(patience_s, 6))
        virtual_clock.passes(patience_s)
        raise Unreachable("the daemon does not answer")

    monkeypatch.setattr(stats, "daemon_at", lambda socket, patience=5.0: hangs(socket, patience_s=patience))
    began = virtual_clock.now
    done = pagetier("stats", tmp_path / "socket", "--wait", f"{seconds}s")
    assert (done.exit_code, patience) == (Exit.UNREACHABLE, asked)
    assert virtual_clock.now - began <= (seconds or 5) + 0.001


def test_a_stop_shows_what_is_left_to_write() -> None:
    with DiskDaemon(64) as daemon:
        worker = daemon.kill_worker(signal.SIGSTOP)  # before the first page is stored, as it may be written at once
        with daemon.client() as client:
            client.store(namespace().keys(range(16 * 40)), [bytes(FRAME - 64)] * 40)
        daemon.signal(signal.SIGTERM)
        assert eventually(lambda: daemon_stats(daemon.socket).get("phase") == "stopping")
        assert eventually(lambda: daemon_stats(daemon.socket).get("progress", 1) < 1)
        assert eventually(lambda: bool(daemon.lines("event=progress")))
        os.kill(worker, signal.SIGCONT)
        daemon.wait()
        lines = daemon.log.read_text()
    assert "stopping: 40 pages (2.5 MiB) to write, at most 1h" in lines
    assert "event=progress" in lines and 'what="unwritten pages"' in lines


def test_one_line_says_how_the_cache_is() -> None:
    with DiskDaemon(256) as daemon, daemon.client() as client:
        client.store(namespace().keys(range(16)), [b"x" * 100])
        line = pagetier("stats", daemon.socket, "--short").output
    in_memory, on_disk = "1 of 256 pages, 64.0 KiB of 16.0 MiB", "0 of 998 pages, 0 B of 62.4 MiB"
    assert line.startswith(f"serving; memory {in_memory}; disk {on_disk}; ")
    assert line.endswith("; no lookups; 1 client\n")


def test_the_worker_of_the_disk_is_no_client() -> None:
    with DiskDaemon() as daemon:
        output = pagetier("stats", daemon.socket).output
    assert "No clients are attached." in output
    ratio, in_time = (line.split() for line in output.splitlines() if line.startswith(("hit ratio", "reads in")))
    assert (ratio, in_time) == (["hit", "ratio", "-", "-"], ["reads", "in", "time", "-", "-"])
