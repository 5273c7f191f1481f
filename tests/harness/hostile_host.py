"""Runs a command, as root, among all that a test must not see: hostile_host.py PLACE -- COMMAND...

PLACE says what is at /run/pagetier: `ours` and `theirs`, with a daemon of this user or of another one, or a `file`.
Segments of dead daemons, settings, a small /tmp and /dev/shm, an odd umask and locale are there each time. All of it is
in namespaces of its own: nothing of it reaches the real host.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventually import eventually
from other_users import ALICE, command_as, folder_of
from own_host import have_own_host, is_hidden, needed_in_tmp

PLACES: Final = ("ours", "theirs", "file")
REFUSED: Final = 77
_RUN: Final = Path("/run/pagetier")
_SETTINGS: Final = {"pagetierd.toml": "[arena]\nsize = 1\n", "copy.toml": "programs = 'none'\n"}
_ENVIRON: Final = {
    "GIT_DIR": "/nowhere",
    "GIT_INDEX_FILE": "/nowhere/index",
    "HOME": "/etc",  # with .config/pagetier/copy.toml
    "LANGUAGE": "tr",
    "LC_ALL": "tr_TR.ISO-8859-9",
    "LOGNAME": "an-ordinary-user-with-a-long-name",  # too long for sockets in folders that have it
    "NOTIFY_SOCKET": "/run/pagetier/notify",
    "PAGETIER_ARENA_SIZE": "nonsense",
    "PAGETIER_CONFIG": "/etc/pagetier/pagetierd.toml",
    "PAGETIER_NAME": "pagetier",
    "PAGETIER_SOCKET": "/run/pagetier/pagetier.sock",
    "PYTHONUNBUFFERED": "1",
    "XDG_CACHE_HOME": "/proc",
    "XDG_CONFIG_HOME": "/etc",
    "XDG_RUNTIME_DIR": "/run",
}


@contextmanager
def _daemon_of(user: int, name: str) -> Iterator[None]:
    """Runs a daemon of this user at the default socket, and kills it at the end."""
    words = [f"--name={name}", f"--socket={_RUN}/pagetier.sock", "--arena-size=16MiB", "--set=access.socket_mode=0666"]
    imports = "import asyncio, concurrent.futures.thread\nfrom pagetier.daemon.main import main"
    command = command_as(user, imports, "main()", *words)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: (_RUN / "pagetier.sock").exists() or process.poll() is not None)
        assert process.poll() is None, "the daemon of the hostile host ended"
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _occupied(place: str) -> Iterator[None]:
    """Occupies /run/pagetier, and leaves the segments of a daemon that died there."""
    user = ALICE if place == "theirs" else 0
    folder_of(user, _RUN)
    with _daemon_of(user, "pagetier-died"):
        pass
    if place == "file":
        (_RUN / "pagetier.sock").unlink()
        _RUN.rmdir()
        _RUN.touch()
        yield
    else:
        (_RUN / "pagetier.sock").unlink()
        with _daemon_of(user, "pagetier"):
            yield


def _configure() -> None:
    """Writes settings to /etc, which is a copy of the real one."""
    for name in ("upper", "work"):
        Path("/dev/shm/etc", name).mkdir(parents=True)
    options = "lowerdir=/etc,upperdir=/dev/shm/etc/upper,workdir=/dev/shm/etc/work"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", "/etc"], check=True)
    for folder in ("/etc/pagetier", "/etc/.config/pagetier"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, text in _SETTINGS.items():
            Path(folder, name).write_text(text)


def _leave_little_room() -> None:
    """Makes /dev/shm small, and /tmp, too, unless this clone or its Python is there."""
    subprocess.run(["mount", "-o", "remount,size=64m", "/dev/shm"], check=True)
    if not needed_in_tmp():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/tmp"], check=True)


def main(place: str, command: Sequence[str]) -> int:
    """Runs the command to its end and returns its exit code."""
    have_own_host()
    if os.geteuid() or not is_hidden():
        sys.stderr.write("only root, where namespaces are permitted, can make a hostile host\n")
        return REFUSED
    _leave_little_room()
    with _occupied(place):
        _configure()
        os.umask(0o077)
        return subprocess.run(command, check=False, env=os.environ | _ENVIRON).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[3:]))
