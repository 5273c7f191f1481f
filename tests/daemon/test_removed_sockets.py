"""Sockets whose files another process removes while the daemon runs; and those that dead daemons left."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import socket
import tempfile
from pathlib import Path

import pytest

from eventually import eventually
from http_calls import call
from other_users import NOBODY, as_root
from pagetier.daemon.host import listening_socket
from pagetier.daemon.host.dead_socket import remove_dead_socket
from pagetier.daemon.host.listening_socket import BoundSocket
from pagetier.shm.exit_codes import Exit
from refused_starts import AS_NOBODY, arguments, pagetierd
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


# --- dead sockets ----------------------------------------------------------------------------------------------------


def dead_socket(path: Path) -> Path:
    """Makes a socket on which no process listens."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    return path


def release(daemon: RunningDaemon, *more: str) -> None:
    given = pagetierd(*arguments(daemon, *more), "--release-memory")
    assert given.code == Exit.OK, given.text


def test_the_socket_of_a_killed_daemon_is_removed_with_its_memory() -> None:
    with RunningDaemon() as daemon:
        daemon.kill()
        assert daemon.socket.is_socket()
        release(daemon)
        assert not daemon.socket.exists()
        dead_socket(daemon.socket)
        release(daemon)
        assert not daemon.socket.exists(), "also if the memory was released before"
        daemon.start()


def test_a_socket_on_which_a_daemon_listens_stays(name: str) -> None:
    with RunningDaemon() as daemon:
        release(daemon, "--name", name)
        assert connects(daemon.socket)
        assert pagetierd(*arguments(daemon), "--release-memory").code == Exit.REFUSED
        assert connects(daemon.socket)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_another_kind_stays(tmp_path: Path, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(tmp_path / "s"))
        remove_dead_socket(tmp_path / "s")
        assert (tmp_path / "s").is_socket()


def test_files_and_links_at_the_path_of_a_socket_stay(tmp_path: Path) -> None:
    dead = dead_socket(tmp_path / "dead")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(dead)
    (tmp_path / "folder").symlink_to(tmp_path)
    for path in (tmp_path / "file", tmp_path / "link", tmp_path / "folder" / "dead", tmp_path / "none" / "s"):
        remove_dead_socket(path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["dead", "file", "folder", "link"]


def test_a_daemon_that_begins_to_listen_meanwhile_keeps_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dead_socket(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as starting:

        def rename_after_the_start(left: Path, aside: Path) -> None:
            if not starting.getsockname():
                path.unlink()
                starting.bind(str(path))
                starting.listen()
            os.rename(left, aside)  # noqa: PTH104  Path's is replaced

        monkeypatch.setattr(Path, "rename", rename_after_the_start)
        remove_dead_socket(path)
        assert connects(path) and [*tmp_path.iterdir()] == [path]


@as_root
def test_only_root_removes_a_dead_socket_of_another_user(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o777)
        path = dead_socket(Path(folder) / "s")
        path.chmod(0o666)
        given = ("--name", name, "--socket", str(path), "--release-memory")
        assert pagetierd(*given, code=AS_NOBODY).code == Exit.OK
        assert path.is_socket()
        os.chown(path, NOBODY, NOBODY)
        assert pagetierd(*given).code == Exit.OK
        assert not path.exists()
