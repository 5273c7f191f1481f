"""A client believes no daemon that another user could have placed where the client looks by itself."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from other_users import ALICE, MALLORY, as_root, command_as, environ_with, fallback_of, folder_of, output_as
from running_daemon import START_S

pytestmark = as_root

_DAEMON = "import asyncio, concurrent.futures.thread\nfrom pagetier.daemon.main import main"
_CLIENT = """
with Client(*sys.argv[1:]) as client:
    print("attached" if client.wait_attached(10.0 if expected else 1.5) else "alone")
    keys = Namespace(model=os.urandom(8).hex(), dtype="f", page_tokens=16).keys(range(16))
    print(client.store(keys, [bytes(4096)]).stored, "stored")
"""


@contextmanager
def daemon_of(user: int, socket: Path, *more: str) -> Iterator[Path]:
    """Runs a daemon as this user; everybody may attach to it."""
    name = f"pagetier-test-{secrets.token_hex(6)}"
    arguments = [f"--name={name}", f"--socket={socket}", "--arena-size=1MiB", "--arena-frame-size=64KiB"]
    arguments += ["--access-socket-mode=0666", f"--access-users={ALICE},{MALLORY}", *more]
    command = command_as(user, _DAEMON, "main()", *arguments)
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environ_with())
        try:
            ends = time.monotonic() + START_S
            while b"ready on" not in os.pread(log.fileno(), 1 << 16, 0):
                assert process.poll() is None and time.monotonic() < ends, os.pread(log.fileno(), 1 << 16, 0)
                time.sleep(0.01)
            yield socket
        finally:
            process.terminate()
            assert process.wait(START_S) == 0
    assert not list(Path("/dev/shm").glob(f"{name}.*"))


def attach(user: int, *socket: str, expected: bool = False, **environ: str) -> str:
    """Returns what a client of this user logs and stores, with `socket` and `environ` as all that it is given."""
    code = f"expected = {expected}\n{_CLIENT}"
    _, told = output_as(
        user, "import time\nfrom pagetier.client import Client, Namespace", code, *socket, environ=environ
    )
    return told


def test_a_folder_that_another_user_made_in_tmp() -> None:
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            told = attach(ALICE)
    assert told.endswith("alone\n0 stored\n"), told
    assert f"{folder} belongs to user {MALLORY}" in told
    assert "PAGETIER_SOCKET" in told
    assert len([line for line in told.splitlines() if "cannot trust" in line]) == 1, told


def test_a_link_to_a_folder_of_another_user() -> None:
    with fallback_of(ALICE) as folder, fallback_of(MALLORY) as real:
        folder_of(MALLORY, real)
        folder.symlink_to(real)
        os.chown(folder, MALLORY, MALLORY, follow_symlinks=False)
        with daemon_of(MALLORY, real / "pagetier.sock"):
            told = attach(ALICE)
    assert "0 stored" in told
    assert f"{folder} is a link" in told


def test_a_daemon_of_another_user_in_ones_own_folder() -> None:
    """It can be there where the folder was open to others once: the socket's name outlives that."""
    with fallback_of(ALICE) as folder:
        folder_of(ALICE, folder, 0o777)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            told = attach(ALICE)
            assert "0 stored" in told
            assert f"others may write to {folder}" in told
            folder.chmod(0o755)
            told = attach(ALICE)
            assert "0 stored" in told
            assert f"it is served by user {MALLORY}" in told


def test_one_s_own_daemon_and_root_s() -> None:
    for user in (ALICE, 0):
        with fallback_of(ALICE) as folder:
            folder_of(user, folder)
            with daemon_of(user, folder / "pagetier.sock"):
                assert "attached\n" in attach(ALICE, expected=True)


def test_a_path_that_was_named() -> None:
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock") as socket:
            assert "1 stored" in attach(ALICE, str(socket), expected=True)
            assert "1 stored" in attach(ALICE, expected=True, PAGETIER_SOCKET=str(socket))


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Makes a folder in which only root can make others, as /run is."""
    with tempfile.TemporaryDirectory(dir="/run", prefix="pagetier-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_root_made_for_a_daemon_s_user(runtime: Path) -> None:
    """As systemd makes /run/pagetier for the user pagetier."""
    folder_of(MALLORY, runtime / "pagetier")
    with daemon_of(MALLORY, runtime / "pagetier/pagetier.sock"):
        assert "1 stored" in attach(ALICE, expected=True, XDG_RUNTIME_DIR=str(runtime))


def test_a_folder_in_a_folder_of_another_user(runtime: Path) -> None:
    """As with the XDG_RUNTIME_DIR of whoever called su."""
    folder_of(MALLORY, runtime / "user")
    folder_of(MALLORY, runtime / "user/pagetier")
    with daemon_of(MALLORY, runtime / "user/pagetier/pagetier.sock"):
        told = attach(ALICE, XDG_RUNTIME_DIR=str(runtime / "user"))
    assert "0 stored" in told
    assert f"{runtime}/user/pagetier belongs to user {MALLORY}" in told


@pytest.mark.parametrize("command", ["stats", "flush", "resize", "doctor", "top"])
def test_commands_believe_it_as_little(command: str) -> None:
    arguments = {"flush": ["--namespace", "m"], "resize": ["--disk-size", "1GiB"], "top": ["--once"]}.get(command, [])
    imports = f"import pagetier.daemon.cli.render\nfrom pagetier.daemon.cli.{command} import {command} as command"
    with fallback_of(ALICE) as folder:
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            code, told = output_as(ALICE, imports, "command()", *arguments)
    assert code == (1 if command == "doctor" else 3), told
    assert f"{folder} belongs to user {MALLORY}" in told
    assert "slot" not in told and "answers" not in told


def test_a_replay_believes_it_as_little() -> None:
    imports = "from pagetier.client.cli.replay import clients, replay, run"
    with fallback_of(ALICE) as folder, tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
        trace.write('{"timestamp": 0, "input_length": 16, "output_length": 1, "hash_ids": [1]}\n')
        trace.flush()
        Path(trace.name).chmod(0o644)
        folder_of(MALLORY, folder)
        with daemon_of(MALLORY, folder / "pagetier.sock"):
            code, told = output_as(ALICE, imports, "replay()", trace.name)
    assert code == 3, told
    assert f"{folder} belongs to user {MALLORY}" in told
