"""A fleet's worker that is a service of its own: it comes to the daemon by a socket, as often as either ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from eventually import PATIENCE_S, eventually
from fleet_host import PATIENT
from other_users import MALLORY, as_root, output_as
from running_daemon import RunningDaemon, namespace

PAGE = 100_000


@contextmanager
def worker_of(daemon: RunningDaemon, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `python -m pagetier.tiers.worker --connect` in a loop, as a service manager does; `before` runs the loop."""
    path = str(socket_of(daemon))
    loop = f'while "{sys.executable}" -m pagetier.tiers.worker --connect "{path}"; do sleep 0.1; done'
    with subprocess.Popen([*before, "sh", "-c", loop], start_new_session=True, stdin=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    (tmp_path / "store").mkdir()
    more = ("--set", f"remote.url=file://{tmp_path}/store", "--set", "remote.worker=service", *PATIENT)
    with RunningDaemon("16MiB", "64KiB", *more) as daemon:
        # The daemon is ready before this socket is, and no process can connect to it before its mode is set.
        assert eventually(lambda: mode_of(socket_of(daemon)) == 0o600), daemon.log.read_text()
        yield daemon


def socket_of(daemon: RunningDaemon) -> Path:
    return daemon.socket.with_name("remote.sock")


def standing(daemon: RunningDaemon) -> str:
    return daemon.snapshot().fleet.standing


def mode_of(socket: Path) -> int:
    return socket.stat().st_mode & 0o777 if socket.exists() else 0


def worker_pid(daemon: RunningDaemon) -> int:
    return next(slot.pid for slot in daemon.slots() if slot.name == "fleet")


def test_a_worker_comes_by_itself_and_again(daemon: RunningDaemon) -> None:
    pages = np.random.default_rng(1).integers(0, 256, (3, PAGE), np.uint8)
    keys = namespace(lora="service").keys(range(48))
    with worker_of(daemon), daemon.client() as client:
        assert eventually(lambda: standing(daemon) == "open"), daemon.log.read_text()
        assert client.store(keys, pages).stored == 3
        assert eventually(lambda: daemon.snapshot().fleet.written == 3)
        first = worker_pid(daemon)
        os.kill(first, signal.SIGTERM)
        assert eventually(lambda: standing(daemon) == "down"), daemon.log.read_text()
        assert daemon.snapshot().fleet.trouble == "its worker ended: see its own log", (
            "it was not given up as a silent one"
        )
    with worker_of(daemon):
        assert eventually(lambda: standing(daemon) == "open" and worker_pid(daemon) != first)
    assert daemon.findings() == []


def test_a_worker_that_waits_finds_a_daemon_that_starts_later(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    more = ("--set", f"remote.url=file://{tmp_path}/store", "--set", "remote.worker=service")
    daemon = RunningDaemon("16MiB", "64KiB", *more)
    with worker_of(daemon), daemon:
        assert eventually(lambda: standing(daemon) == "open"), daemon.log.read_text()
    assert not socket_of(daemon).exists()


def test_a_worker_comes_to_a_socket_that_was_removed_and_opened_again(daemon: RunningDaemon) -> None:
    path = socket_of(daemon)
    path.unlink()
    assert eventually(lambda: mode_of(path) == 0o600), daemon.log.read_text()
    with worker_of(daemon):
        assert eventually(lambda: standing(daemon) == "open"), daemon.log.read_text()


def test_a_daemon_says_that_no_worker_came(daemon: RunningDaemon) -> None:
    assert eventually(lambda: standing(daemon) == "down")
    trouble = daemon.snapshot().fleet.trouble
    assert "no worker came to" in trouble and trouble.endswith("start pagetierd-remote.service")


@as_root
def test_another_user_is_no_worker(daemon: RunningDaemon) -> None:
    path = socket_of(daemon)
    path.chmod(0o666)
    daemon.socket.parent.chmod(0o755)
    code = f"s = socket.socket(socket.AF_UNIX); s.connect({str(path)!r}); print(s.recv(10))"
    assert output_as(MALLORY, "import socket", code) == (0, "b''\n")
    assert daemon.lines(f"has user {MALLORY}: run it as user {os.geteuid()}")


@as_root
def test_a_worker_may_be_in_a_container_of_its_own(daemon: RunningDaemon) -> None:
    """With other PIDs, and another /dev/shm and System V memory, as on Kubernetes."""
    alone = "mount -t tmpfs none /dev/shm && exec"
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--ipc", "--mount-proc", "sh", "-c"]
    pages = np.random.default_rng(2).integers(0, 256, (3, PAGE), np.uint8)
    keys = namespace(lora="container").keys(range(48))
    with worker_of(daemon, *inside, f'{alone} "$@"', "container"), daemon.client() as client:
        assert eventually(lambda: standing(daemon) == "open"), daemon.log.read_text()
        assert client.store(keys, pages).stored == 3
        assert eventually(lambda: daemon.snapshot().fleet.written == 3)
        daemon.pagetier("flush", "--all", "--yes")
        with client.match(keys) as match:
            out = np.zeros((3, PAGE), np.uint8)
            assert client.load(match, out, timeout=PATIENCE_S) == 3 and np.array_equal(out, pages)
    assert daemon.findings() == []
