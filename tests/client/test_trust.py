"""A client does not attach to a daemon that another user could have placed at a default path."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import user_namespaces
from eventually import PATIENCE_S, eventually
from other_users import (
    ALICE,
    MALLORY,
    as_root,
    command_as,
    environ_with,
    fallback_of,
    folder_of,
    output_as,
    skip_beside_a_default_socket,
)

pytestmark = as_root

# All that these processes import later, as root: its folder may be closed to the users that they become.
_DAEMON = "import asyncio, concurrent.futures.thread\nfrom pagetier.daemon.main import main"
_UNMAPPED = """
import sys
from eventually import PATIENCE_S
from user_namespaces import enter
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.socket_path import DefaultSocket
enter("", 0, 0)
try:
    Link(DefaultSocket(sys.argv[1]), PATIENCE_S)
    print("trusted")
except LinkError as error:
    print(error)
"""
_CLIENT = """
with Client(*sys.argv[1:], timeout=patience) as client:
    show = sys.stdout.write  # in one piece: the client logs to it in a thread of its own
    show("attached\\n" if client.wait_attached(patience if expected else 0.7) else "alone\\n")
    keys = Namespace(model=os.urandom(8).hex(), dtype="f", page_tokens=16).keys(range(16))
    show(f"{client.store(keys, [bytes(4096)]).stored} stored\\n")
"""


@contextmanager
def daemon_of(user: int, socket: Path, *more: str) -> Iterator[Path]:
    """Runs a daemon as this user, to which all users may attach."""
    name = f"pagetier-test-{secrets.token_hex(6)}"
    arguments = [f"--name={name}", f"--socket={socket}", "--arena-size=1MiB", "--set=arena.frame_size=64KiB"]
    arguments += ["--set=access.socket_mode=0666", f"--set=access.users={ALICE},{MALLORY}", *more]
    command = command_as(user, _DAEMON, "main()", *arguments)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ_with())
        try:

            def is_ready() -> bool:
                assert process.poll() is None, os.pread(log.fileno(), 1 << 16, 0)
                return b"ready on" in os.pread(log.fileno(), 1 << 16, 0)

            assert eventually(is_ready), os.pread(log.fileno(), 1 << 16, 0)
            yield socket
        finally:
            process.terminate()
            assert process.wait() == 0
    assert not list(Path("/dev/shm").glob(f"{name}.*"))


def attach(user: int, *socket: str, expected: bool = False, **environ: str) -> str:
    """Returns what a client of this user logs and stores, with no settings but `socket` and `environ`."""
    code = f"expected, patience = {expected}, {PATIENCE_S}\n{_CLIENT}"
    _, output = output_as(
        user, "import time\nfrom pagetier.client import Client, Namespace", code, *socket, environ=environ
    )
    return output


def test_a_folder_in_tmp_of_another_user_is_not_trusted() -> None:
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            output = attach(ALICE)
    assert output.endswith("alone\n0 stored\n"), output
    assert f"{folder} belongs to user {MALLORY}" in output
    assert "PAGETIER_SOCKET" in output
    assert len([line for line in output.splitlines() if "cannot trust" in line]) == 1, output


def test_a_link_to_a_folder_of_another_user_is_not_trusted() -> None:
    with fallback_of(ALICE) as folder, fallback_of(MALLORY) as real:
        folder_of(MALLORY, real)
        folder.symlink_to(real)
        os.chown(folder, MALLORY, MALLORY, follow_symlinks=False)
        with daemon_of(MALLORY, real / "pagetier.sock"):
            output = attach(ALICE)
    assert "0 stored" in output
    assert f"{folder} is a link" in output


def test_a_daemon_of_another_user_in_the_users_own_folder_is_not_trusted() -> None:
    """This happens if other users could once write to the folder: the socket's name stays."""
    with fallback_of(ALICE) as folder:
        folder_of(ALICE, folder, 0o777)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            output = attach(ALICE)
            assert "0 stored" in output
            assert f"others may write to {folder}" in output
            folder.chmod(0o755)
            output = attach(ALICE)
            assert "0 stored" in output
            assert f"it is served by user {MALLORY}" in output


def test_daemons_of_the_same_user_and_of_root_are_trusted() -> None:
    for user in (ALICE, 0):
        with fallback_of(ALICE) as folder:
            folder_of(user, folder)
            with daemon_of(user, folder / "pagetier.sock"):
                assert "attached\n" in attach(ALICE, expected=True)


def test_an_explicit_path_is_trusted() -> None:
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock") as socket:
            assert "1 stored" in attach(ALICE, str(socket), expected=True)
            assert "1 stored" in attach(ALICE, expected=True, PAGETIER_SOCKET=str(socket))


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Makes a folder in which only root can create others, as in /run."""
    skip_beside_a_default_socket()
    with tempfile.TemporaryDirectory(dir="/run", prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_root_made_for_the_user_of_a_daemon_is_trusted(runtime: Path) -> None:
    """As systemd makes /run/pagetier for the user pagetier."""
    folder_of(MALLORY, runtime / "pagetier")
    with daemon_of(MALLORY, runtime / "pagetier/pagetier.sock"):
        assert "1 stored" in attach(ALICE, expected=True, XDG_RUNTIME_DIR=str(runtime))


def test_a_folder_in_a_folder_of_another_user_is_not_trusted(runtime: Path) -> None:
    """As with the XDG_RUNTIME_DIR of a user who called su."""
    folder_of(MALLORY, runtime / "user")
    folder_of(MALLORY, runtime / "user/pagetier")
    with daemon_of(MALLORY, runtime / "user/pagetier/pagetier.sock"):
        output = attach(ALICE, XDG_RUNTIME_DIR=str(runtime / "user"))
    assert "0 stored" in output
    assert f"{runtime}/user/pagetier belongs to user {MALLORY}" in output


def test_an_unmapped_user_is_not_taken_for_the_own_one(runtime: Path) -> None:
    """In a user namespace without a map this process and all other users have the same number."""
    folder_of(MALLORY, runtime / "pagetier", 0o755)
    os.chown(runtime, MALLORY, MALLORY)
    environ = environ_with({"PYTHONPATH": str(Path(user_namespaces.__file__).parent)})
    with daemon_of(MALLORY, runtime / "pagetier/pagetier.sock") as place:
        command = [sys.executable, "-c", _UNMAPPED, str(place)]
        output = subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout
    assert f"{runtime}/pagetier belongs to user 65534, the number of all users that this user" in output


@pytest.fixture(scope="module")
def untrusted() -> Iterator[Path]:
    """Yields a folder of another user with the socket of that user's daemon."""
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            yield folder


@pytest.mark.parametrize("command", ["stats", "flush", "resize", "doctor", "top"])
def test_commands_do_not_trust_it_either(untrusted: Path, command: str) -> None:
    arguments = {"flush": ["--namespace", "m"], "resize": ["--disk-size", "1GiB"], "top": ["--once"]}.get(command, [])
    imports = f"import pagetier.daemon.cli.tables\nfrom pagetier.daemon.cli.{command} import {command} as command"
    code, output = output_as(ALICE, imports, "command()", *arguments)
    assert code == (1 if command == "doctor" else 3), output
    assert f"{untrusted} belongs to user {MALLORY}" in output
    assert "slot" not in output and "ok       daemon" not in output


def test_a_replay_does_not_trust_it_either(untrusted: Path) -> None:
    imports = "from pagetier.client.cli.replay import clients, replay, run"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.write('{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n')
        trace.flush()
        Path(trace.name).chmod(0o644)
        code, output = output_as(ALICE, imports, "replay()", trace.name, "--live")
    assert code == 3, output
    assert f"{untrusted} belongs to user {MALLORY}" in output
