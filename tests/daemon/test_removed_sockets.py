"""Sockets whose files another process removes while the daemon runs."""

from __future__ import annotations

import asyncio
import functools
import shutil
import socket
from pathlib import Path

import pytest

from eventually import eventually
from http_calls import call
from pagetier.daemon.host import listening_socket
from pagetier.daemon.host.listening_socket import BoundSocket
from running_daemon import RunningDaemon

RESTORED, LOST = "event=socket_restored", "event=socket_lost"


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(path))
        except OSError:
            return False
    return True


@pytest.mark.parametrize("with_folder", [False, True])
def test_a_removed_control_socket_is_opened_again(tmp_path: Path, with_folder: bool) -> None:
    daemon = RunningDaemon()
    daemon.socket = tmp_path / "folder" / "pagetier.sock"
    with daemon, daemon.client() as attached:
        if with_folder:
            shutil.rmtree(daemon.socket.parent)
        else:
            daemon.socket.unlink()
        assert eventually(daemon.socket.is_socket)
        with daemon.client() as later:
            assert later.attached and attached.attached
        assert len(daemon.lines(RESTORED)) == 1 and str(daemon.socket) in daemon.lines(RESTORED)[0]
    assert not daemon.socket.exists()


def test_a_socket_stays_lost_while_another_daemon_listens_there(tmp_path: Path) -> None:
    with RunningDaemon() as daemon:
        daemon.socket.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(daemon.socket))
            other.listen()
            assert eventually(lambda: len(daemon.lines(LOST)) == 1), daemon.log.read_text()
            assert "another daemon listens on" in daemon.lines(LOST)[0]
        assert eventually(lambda: len(daemon.lines(RESTORED)) == 1), "the socket of a dead process is replaced"


def test_removed_http_sockets_are_opened_again_for_a_new_process(tmp_path: Path) -> None:
    paths = [tmp_path / "http.sock", tmp_path / "metrics.sock"]
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={paths[0]}", "--set", f"metrics.listen={paths[1]}"):
        for path in paths:
            assert call(path, "GET", "/healthz")[0] == 200
            path.unlink()
        for path in paths:
            assert eventually(functools.partial(connects, path))
            assert call(path, "GET", "/healthz")[0] == 200
    assert not any(path.exists() for path in paths)


def test_a_socket_that_was_removed_before_its_daemon_looked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(listening_socket, "identity", Path.unlink)
        bound = BoundSocket(tmp_path / "s", 0o600)

    async def restored() -> socket.socket | None:
        return bound.restore()

    before = asyncio.run(restored())
    assert before is not None and connects(bound.path)
    before.close()
    bound.listener.close()
