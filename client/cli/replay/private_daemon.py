"""A daemon for one replay alone: a capacity that is exactly its arena, and nothing left of it at the end."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from pagetier.client.cli.replay.daemon_counters import observe
from pagetier.shm._core import ShmError
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.geometry import Geometry
from pagetier.shm.protocol import BUILD, Attach, Detach
from pagetier.shm.segments import Leftovers, Wish, take

_REFUSED: Final = 4
_LEAST_FRAME: Final = 4096
_PAUSE_S: Final = 0.01
_PROBE_S: Final = 1.0
_STOP_S: Final = 60.0  # with what a stop may take to write to a disk that stays
_NO_USE_IN_WRITING_ALL: Final = "--disk-stop=1ms"
# A replay measures hits and not timeouts: what the disk is to have it gets, however slow it is.
_PATIENT: Final = "--disk-patience=10s"

# It is a process and no import: clients know the daemon by its socket alone. If this process is killed, the kernel
# tells it to stop (prctl 1 is PR_SET_PDEATHSIG, signal 15 SIGTERM), and it is who removes the folder. The kernel may do
# so when the first thread of this process is dead (a zombie, Z) and the others are not yet.
_START: Final = """
import atexit, ctypes, os, pathlib, shutil
def tidy():
    if os.getppid() != {parent} or ") Z " in pathlib.Path("/proc/{parent}/stat").read_text():
        shutil.rmtree({folder!r}, ignore_errors=True)
atexit.register(tidy)
ctypes.CDLL(None).prctl(1, 15)
from pagetier.daemon.main import main
main()
"""


class DaemonError(Exception):
    """The daemon did not start. code: its exit code; the message is what it said."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def frame_bytes(page_bytes: int) -> int:
    """The smallest frame that holds such a page: a power of two."""
    return max(_LEAST_FRAME, 1 << (page_bytes - 1).bit_length())


class PrivateDisk(msgspec.Struct, frozen=True):
    """The disk of an own daemon. size and write: as the daemon's flags take them.

    path: a folder that stays; None: a temporary one.
    """

    size: str
    path: Path | None = None
    write: str | None = None

    def flags(self, folder: Path) -> list[str]:
        """For a daemon that has this folder to itself."""
        path = self.path.absolute() if self.path else folder / "disk"
        flags = [f"--disk-path={path}", f"--disk-size={self.size}", _PATIENT]
        flags += [f"--disk-write={self.write}"] if self.write else []
        return flags if self.path else [*flags, _NO_USE_IN_WRITING_ALL]


class _Standing(msgspec.Struct, frozen=True):
    """What is used of what a daemon says of its disk."""

    standing: str
    trouble: str = ""


class OwnDaemon:
    """A `pagetierd` that evicts only when a page needs the room. As a context manager it serves, and is gone after.

    Args:
        arena: its size as the daemon's flag takes it.
        page_bytes: of the pages that will be stored; each takes one frame.
        disk: None for none.

    Raises DaemonError if it does not start.
    """

    def __init__(self, arena: str, page_bytes: int, disk: PrivateDisk | None = None) -> None:
        self._name = f"pagetier-replay-{secrets.token_hex(6)}"
        self._folder = tempfile.TemporaryDirectory(prefix="pagetier-replay-")
        self.socket = Path(self._folder.name) / "pagetier.sock"
        self._log = Path(self._folder.name) / "log"
        self._disk = disk
        self._process = self._launch(
            f"--name={self._name}",
            f"--socket={self.socket}",
            f"--arena-size={arena}",
            f"--arena-frame-size={frame_bytes(page_bytes)}",
            "--evict-low=0",
            "--evict-high=0",
            *(disk.flags(Path(self._folder.name)) if disk else []),
        )

    def __enter__(self) -> Self:
        try:
            self._until(self._admits)
            if self._disk:
                self._until(self._disk_is_open)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _launch(self, *flags: str) -> subprocess.Popen[bytes]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PAGETIER_")}
        program = _START.format(parent=os.getpid(), folder=self._folder.name)
        command = [sys.executable, "-c", program, *flags]
        with self._log.open("wb") as log:
            # In a session of its own a Ctrl-C does not reach it, and it outlives the clients.
            return subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

    def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self._process.poll() is not None:
                raise DaemonError(self._log.read_text().strip(), self._process.returncode)
            time.sleep(_PAUSE_S)

    def _admits(self) -> bool:
        """Whether engines may attach: this one does, and leaves. Who only looks is answered earlier."""
        try:
            link = Link(self.socket, _PROBE_S)
        except LinkError:
            return False
        try:
            for descriptor in link.greet(Attach(BUILD, 0, "pagetier-replay"), _PROBE_S).descriptors:
                os.close(descriptor)
            link.send(Detach(), _PROBE_S)
        except LinkError:
            return False
        finally:
            link.close()
        return True

    def _disk_is_open(self) -> bool:
        """Raises DaemonError if the disk can not be used."""
        try:
            text = observe(self.socket).disk_text()
        except (LinkError, ShmError):
            return False
        told = msgspec.json.decode(text, type=_Standing) if text else _Standing("")
        if told.standing == "down":
            raise DaemonError(f"no disk: {told.trouble}", _REFUSED)
        return told.standing == "open"

    def _end(self) -> None:
        self._process.terminate()
        try:
            stopped = self._process.wait(_STOP_S) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            stopped = False
        if not stopped:
            _remove(self._name)
        self._folder.cleanup()


def _remove(name: str) -> None:
    """Removes what a daemon left that was killed: takes its segments over for the smallest ones, and removes those."""
    smallest = Geometry(frame_bytes=_LEAST_FRAME, frames=1, entries=1, spaces=1)
    take(Wish(name, smallest, BUILD, Leftovers.DISCARD)).remove()
