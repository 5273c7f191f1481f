"""Kills clients, daemons and `pagetier-bench replay` itself: the replay ends properly and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from eventually import PATIENCE_S
from pagetier.shm._core import Observer
from pagetier.shm.daemon_link import Link, LinkError
from process_states import arguments_of, children_of
from replay_command import (
    assert_all_released,
    chat,
    clients_of,
    observing,
    replaying,
    report_of,
    until,
    until_granted,
    write_trace,
)
from running_daemon import RunningDaemon

PACE = 600  # requests a second, so that a replay is not over before the test acts


def test_the_requests_of_a_killed_client_are_replayed_by_the_others(tmp_path: Path) -> None:
    trace, tokens = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=4))
    with RunningDaemon("4MiB", "4KiB") as daemon, observing(daemon.socket) as observer:
        with replaying(trace, "--socket", daemon.socket, "--clients", 2, "--pace", PACE) as process:
            until_granted(300, observer, process)
            victim = clients_of(observer)[1]
            os.kill(victim, signal.SIGSTOP)
            until_granted(observer.header().granted + 100, observer, process)  # by now it has requests that it leaves
            os.kill(victim, signal.SIGKILL)
            report = report_of(process)
            assert process.returncode == 1
        assert report["requests"] == 1500 and report["prompt_tokens"] == tokens
        assert report["clients_died"] == 1 and report["wrong_pages"] == 0
        assert_all_released(observer)


def lookups(observer: Observer) -> int:
    return sum(slot.counts.lookups for slot in observer.attachments_with_pins())


def test_a_replay_survives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=5))
    with RunningDaemon("16MiB", "16KiB") as daemon, observing(daemon.socket) as observer:
        with replaying(
            trace, "--socket", daemon.socket, "--clients", 2, "--page-bytes", 16384, "--pace", 300
        ) as process:
            until_granted(300, observer, process)
            daemon.kill()
            asked = lookups(observer)
            until(lambda: lookups(observer) > asked + 10, process)  # the clients continue without a daemon
            clients = clients_of(observer)
            for pid in clients:
                os.kill(pid, signal.SIGSTOP)
            daemon.start()
            granted = observer.header().granted
            for pid in clients:
                os.kill(pid, signal.SIGCONT)
            report = report_of(process)
            assert process.returncode == 0
        assert report["requests"] == 1500 and report["wrong_pages"] == report["clients_died"] == 0
        assert report["pages_refused"] > 0
        assert observer.header().granted > granted
        assert_all_released(observer)


def test_its_private_daemon_is_killed(tmp_path: Path) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(1500, seed=6))
    with replaying(trace, "--arena", "4MiB", "--pace", PACE) as process, private_daemon(process) as daemon:
        until_granted(100, daemon.observer, process)
        os.kill(daemon.pid, signal.SIGKILL)
        report = report_of(process)
        assert report["requests"] == 1500 and report["wrong_pages"] == 0 and report["pages_refused"] > 0
    assert daemon.segments() == []


@pytest.mark.parametrize("disk", [(), ("--disk", "64MiB")], ids=["no disk", "disk"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_stops_the_replay_and_its_processes(
    tmp_path: Path, number: signal.Signals, disk: tuple[str, ...]
) -> None:
    trace, _ = write_trace(tmp_path / "chat.jsonl.gz", chat(3000, seed=7))
    with replaying(trace, "--arena", "4MiB", "--pace", PACE, *disk) as process, private_daemon(process) as daemon:
        until_granted(100, daemon.observer, process)
        family = [daemon.pid, *clients_of(daemon.observer)]
        assert len(family) == (3 if disk else 2) and len(daemon.segments()) == 3
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        until(lambda: not any(map(lives, family)))
    assert daemon.segments() == []
    assert not daemon.folder.exists(), "the folder of the private daemon is left"


class PrivateDaemon(NamedTuple):
    """The private daemon of a replay."""

    pid: int
    name: str
    folder: Path
    observer: Observer

    def segments(self) -> list[Path]:
        return list(Path("/dev/shm").glob(f"{self.name}.*"))


@contextmanager
def private_daemon(process: subprocess.Popen[str]) -> Iterator[PrivateDaemon]:
    until(lambda: socket_of(process) is not None, process)
    pid, flags = daemon_of(process)
    socket = Path(flags["--socket"])
    until(lambda: answers(socket), process)
    with observing(socket) as observer:
        yield PrivateDaemon(pid, flags["--name"], socket.parent, observer)


def daemon_of(process: subprocess.Popen[str]) -> tuple[int, dict[str, str]]:
    """Returns the process and the options of the private daemon; 0 if there is none yet."""
    for child in children_of(process.pid):
        flags = dict(word.split("=", 1) for word in arguments_of(child) if word.startswith("--") and "=" in word)
        if "--arena-size" in flags:
            return child, flags
    return 0, {}


def socket_of(process: subprocess.Popen[str]) -> str | None:
    return daemon_of(process)[1].get("--socket")


def answers(socket: Path) -> bool:
    try:
        Link(socket, PATIENCE_S).close()
    except LinkError:
        return False
    return True


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
