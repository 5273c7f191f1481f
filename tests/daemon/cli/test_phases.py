"""Tests what commands say while the daemon starts, serves and stops, against real daemons."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from daemon_with_disk import FRAME, is_open
from pagetier.daemon.cli import main
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, eventually, namespace

SLOW = ("--arena-threads", "1")  # populates slowly enough to be watched
ARENA = "2GiB"


def pagetier(command: str, socket: Path, *more: str) -> Result:
    return CliRunner().invoke(main, [command, "--socket", str(socket), *more])


def daemon_stats(socket: Path) -> dict[str, Any]:
    result = pagetier("stats", socket, "--json")
    values: dict[str, Any] = json.loads(result.stdout)["daemon"] if result.exit_code == 0 else {}
    return values


def seen_while_it_starts(daemon: RunningDaemon) -> list[dict[str, Any]]:
    """Returns what `stats` showed until the daemon served."""
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]["phase"] != "serving":
        seen += [found] if (found := daemon_stats(daemon.socket)) else []
        time.sleep(0.01)
    return seen


def test_stats_shows_how_far_the_arena_is_populated() -> None:
    with RunningDaemon(ARENA, "1MiB", *SLOW) as daemon:
        daemon.stop()
        daemon.launch()
        first, *_, last = seen_while_it_starts(daemon)
        assert first["phase"] == "starting" and 0 <= first["progress"] < 1
        assert (last["phase"], last["progress"]) == ("serving", 1.0)


def test_wait_ends_when_engines_can_attach() -> None:
    with RunningDaemon(ARENA, "1MiB", *SLOW) as daemon:
        daemon.stop()
        daemon.launch()
        done = pagetier("wait", daemon.socket)
        assert (done.exit_code, done.output) == (Exit.OK, "")
        daemon.client().close()


def test_wait_says_why_engines_cannot_attach(tmp_path: Path) -> None:
    done = pagetier("wait", tmp_path / "none.sock", "--timeout", "0s")
    assert done.exit_code == Exit.UNREACHABLE
    assert "no daemon" in done.output
    wrong = pagetier("wait", tmp_path / "none.sock", "--timeout", "soon")
    assert wrong.exit_code == Exit.USAGE and "soon" in wrong.output


def test_a_stop_shows_what_is_left_to_write(tmp_path: Path) -> None:
    disk = ("--disk-path", str(tmp_path / "disk"), "--disk-size", "64MiB", "--disk-stop-timeout", "3s")
    with RunningDaemon(str(64 * FRAME), str(FRAME), *disk) as daemon:
        assert eventually(lambda: is_open(daemon), 20.0)
        (worker,) = [slot.pid for slot in daemon.slots()]
        with daemon.client() as client:
            client.store(namespace().keys(range(16 * 40)), [bytes(FRAME - 64)] * 40)
        stop_process(worker)
        daemon.signal(signal.SIGTERM)
        assert eventually(lambda: daemon_stats(daemon.socket).get("phase") == "stopping", 2.0)
        assert eventually(lambda: daemon_stats(daemon.socket).get("progress", 1) < 1, 2.0)
        daemon.wait()
        lines = daemon.log.read_text()
    assert "stopping: 40 pages (2.5 MiB) to write, at most 3s" in lines
    assert "event=progress" in lines and 'what="unwritten pages"' in lines


def stop_process(pid: int) -> None:
    """Stops a worker, which its daemon kills at its own end."""
    import os

    os.kill(pid, signal.SIGSTOP)


def test_one_line_says_how_the_cache_is(tmp_path: Path) -> None:
    disk = ("--disk-path", str(tmp_path / "disk"), "--disk-size", "64MiB")
    with RunningDaemon("16MiB", str(FRAME), *disk) as daemon, daemon.client() as client:
        assert eventually(lambda: is_open(daemon), 20.0)
        client.store(namespace().keys(range(16)), [b"x" * 100])
        line = pagetier("stats", daemon.socket, "--short").output
    in_memory, on_disk = "1 of 256 pages, 64.0 KiB of 16.0 MiB", "0 of 836 pages, 0 B of 52.2 MiB"
    assert line.startswith(f"serving; memory {in_memory}; disk {on_disk}; ")
    assert line.endswith("; no lookups; 1 client\n")


def test_the_worker_of_the_disk_is_no_client(tmp_path: Path) -> None:
    disk = ("--disk-path", str(tmp_path / "disk"), "--disk-size", "64MiB")
    with RunningDaemon("16MiB", str(FRAME), *disk) as daemon:
        assert eventually(lambda: is_open(daemon), 20.0)
        output = pagetier("stats", daemon.socket).output
    assert "No clients are attached." in output
    ratio, in_time = (line.split() for line in output.splitlines() if line.startswith(("hit ratio", "reads in")))
    assert (ratio, in_time) == (["hit", "ratio", "-", "-"], ["reads", "in", "time", "-", "-"])
