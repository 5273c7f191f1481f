"""Files that another user placed at the daemon's paths are rejected, and no other file is changed through them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bare_engine import Engine
from disk_daemon import DiskDaemon, TroubledDaemon
from other_users import ALICE, MALLORY, as_root, fallback_of, folder_of, output_as
from pagetier.daemon.cli.unit import unit
from pagetier.daemon.host import listening_socket
from pagetier.daemon.host.listening_socket import SocketError, open_socket

pytestmark = as_root

_DAEMON = "import asyncio, concurrent.futures.thread\nfrom pagetier.daemon.main import main"


@pytest.fixture
def place() -> Iterator[Path]:
    """Yields a folder that other users can enter."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def victim(place: Path) -> Path:
    """Returns a file of root's that must not change."""
    file = place / "victim"
    file.write_text("root's")
    file.chmod(0o600)
    return file


def is_untouched(victim: Path) -> bool:
    found = victim.stat()
    return (found.st_mode & 0o777, found.st_uid, found.st_gid, victim.read_text()) == (0o600, 0, 0, "root's")


def default_daemon(user: int) -> str:
    """Returns the error of a daemon of this user that must not start on its default socket."""
    code, message = output_as(user, _DAEMON, "main()", "--arena-size=1MiB", f"--name=pagetier-test-{user}")
    assert code == 4, message
    return message


def test_a_daemon_does_not_serve_behind_a_link() -> None:
    """The owner of the link could change its target later."""
    with fallback_of(ALICE) as folder, tempfile.TemporaryDirectory(prefix="pagetier-test-") as parent:
        Path(parent).chmod(0o755)
        folder.symlink_to(folder_of(ALICE, Path(parent) / "real"))
        os.chown(folder, MALLORY, MALLORY, follow_symlinks=False)
        assert f"{folder} is a link" in default_daemon(ALICE)


def test_a_daemon_does_not_serve_in_a_folder_that_clients_refuse() -> None:
    with fallback_of(ALICE) as folder:
        folder_of(ALICE, folder, 0o777)
        assert f"others may write to {folder}: chmod go-w {folder}" in default_daemon(ALICE)
        folder.rmdir()
        folder_of(MALLORY, folder)
        assert f"{folder} belongs to user {MALLORY}" in default_daemon(ALICE)


def replace(socket: Path, victim: Path) -> None:
    """Lets another user replace the socket by a link to the victim."""
    link = f"{socket}.link"
    code = f"os.symlink({str(victim)!r}, {link!r}); os.rename({link!r}, {str(socket)!r})"
    assert output_as(MALLORY, "import os", code) == (0, "")


def test_a_socket_that_is_replaced_while_it_is_created_changes_no_other_file(
    place: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control socket and that of the metrics are opened by the same function."""
    socket = folder_of(MALLORY, place / "theirs") / "socket"

    def at(name: str) -> None:
        if name == "server.bound":
            replace(socket, victim)

    monkeypatch.setattr(listening_socket, "point", at)
    with pytest.raises(SocketError, match="was replaced while it was created"):
        open_socket(socket, 0o660, (MALLORY,))
    assert socket.is_symlink() and is_untouched(victim)


@pytest.mark.parametrize("group", [(), (MALLORY,)])
def test_a_socket_that_is_replaced_before_it_is_opened_to_others_changes_no_other_file(
    place: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, group: tuple[int, ...]
) -> None:
    socket, give = folder_of(MALLORY, place / "theirs") / "socket", listening_socket._give

    def give_late(*arguments: Any) -> None:
        replace(socket, victim)
        give(*arguments)

    monkeypatch.setattr(listening_socket, "_give", give_late)
    open_socket(socket, 0o660, group).close()
    assert socket.is_symlink() and is_untouched(victim)


@pytest.mark.parametrize("file", ["owner", "state.tmp"])
def test_links_in_the_disk_tiers_folder_are_rejected(victim: Path, file: str) -> None:
    daemon = TroubledDaemon()
    folder_of(MALLORY, daemon.disk)
    (daemon.disk / file).symlink_to(victim)
    with daemon, Engine(daemon) as engine:
        daemon.wait_down(f"{daemon.disk} belongs to user {MALLORY}")
        engine.goes_on(100)
    assert is_untouched(victim)


def test_a_disk_folder_that_all_users_can_write_to_is_rejected() -> None:
    daemon = TroubledDaemon()
    daemon.disk.mkdir()
    daemon.disk.chmod(0o777)
    with daemon:
        daemon.wait_down(f"all users may write to {daemon.disk}: chmod o-w")
        daemon.disk.chmod(0o770)
        daemon.wait_open()


def test_links_that_a_group_put_into_the_disk_folder_are_removed(place: Path) -> None:
    with DiskDaemon(16) as daemon:
        daemon.close_with(24)
        data = daemon.data_files()[0]
        data.rename(place / "outside")
        data.symlink_to(place / "outside")
        before = (place / "outside").read_bytes()
        daemon.open()
        with Engine(daemon) as engine:
            daemon.store_through(engine, range(1000, 1040))
        daemon.stop()
        assert (place / "outside").read_bytes() == before
        assert not any(path.is_symlink() for path in daemon.disk.rglob("*"))


def test_an_environment_of_another_user_in_the_disk_folder_is_refused(place: Path) -> None:
    daemon = TroubledDaemon()
    daemon.disk.mkdir()
    folder_of(MALLORY, daemon.disk / "0")
    with daemon, Engine(daemon) as engine:
        daemon.wait_down(f"{daemon.disk}/0 belongs to user {MALLORY}: remove it")
        engine.goes_on(100)


@pytest.mark.parametrize("file", ["state", "state.tmp"])
def test_a_fifo_in_the_disk_folder_is_named_and_not_waited_for(file: str) -> None:
    daemon = TroubledDaemon()
    daemon.disk.mkdir()
    os.mkfifo(daemon.disk / file)
    with daemon:
        daemon.wait_down("cannot be used by the disk tier")
        (daemon.disk / file).unlink()
        daemon.wait_open()


def test_a_link_of_another_user_to_the_disk_folder_is_rejected(place: Path) -> None:
    daemon = DiskDaemon()
    daemon.disk.symlink_to(place)
    with daemon:
        daemon.stop()
        os.chown(daemon.disk, MALLORY, MALLORY, follow_symlinks=False)
        daemon.start()
        daemon.wait_down(f"{daemon.disk} belongs to user {MALLORY}")


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_units_are_not_written_through_links(place: Path, victim: Path, kind: str) -> None:
    units = folder_of(MALLORY, place / "root") / "etc/systemd/system"
    units.mkdir(parents=True)
    file = units / "pagetierd.service"
    file.symlink_to(victim) if kind == "link" else os.mkfifo(file)
    for more in [], ["--force"]:
        done = CliRunner().invoke(unit, ["install", "--root", str(place / "root"), *more])
        assert done.exit_code == (not more), done.output
    assert is_untouched(victim)
    assert file.is_file() and not file.is_symlink()
