"""Runs a daemon for one replay: its capacity is exactly its arena, and it leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from pagetier.client.cli.daemon_probe import accepts_clients
from pagetier.client.cli.replay.daemon_counters import observe
from pagetier.shm import clock
from pagetier.shm._core import LEAST_FRAME_BYTES, ShmError
from pagetier.shm.daemon_link import LinkError
from pagetier.shm.geometry import Geometry
from pagetier.shm.log_format import sentence_of
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import Leftovers, SegmentRequest, take

_REFUSED: Final = 4
_PAUSE_S: Final = 0.01
_PROBE_S: Final = 1.0
_STOP_S: Final = 60.0  # includes the writes to a disk tier that is kept
_SKIP_FINAL_WRITES: Final = "--set=disk.stop_timeout=1ms"

# The daemon is a process and not an import, because clients know it only by its socket. If this process is killed, the
# kernel stops the daemon (prctl 1 is PR_SET_PDEATHSIG, signal 15 is SIGTERM), which then removes the folder. The kernel
# may do so when the first thread of this process is dead (a zombie, Z) and the other threads are not yet. A replay
# measures hits, not timeouts: stores wait for the disk, however slow it is.
_START: Final = """
import atexit, ctypes, os, pathlib, shutil
def remove_folder():
    if os.getppid() != {parent} or ") Z " in pathlib.Path("/proc/{parent}/stat").read_text():
        shutil.rmtree({folder!r}, ignore_errors=True)
atexit.register(remove_folder)
ctypes.CDLL(None).prctl(1, 15)
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import Config
from pagetier.daemon.main import Invocation, main
main(obj=Invocation(defaults=Config(disk=DiskOptions(store_timeout=10.0))))
"""


class DaemonError(Exception):
    """The daemon did not start. The message is what it logged.

    Attributes:
        code: Its exit code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def frame_bytes(page_bytes: int) -> int:
    """Returns the size of the smallest frame that holds such a page: a power of two."""
    return max(LEAST_FRAME_BYTES, 1 << (page_bytes - 1).bit_length())


class PrivateDisk(msgspec.Struct, frozen=True):
    """The disk tier of a private daemon.

    Attributes:
        size: The size, in the form of the daemon's option.
        path: A folder that is kept; None for a temporary one.
        write: The write policy, in the form of the daemon's option; None for the default.
    """

    size: str
    path: Path | None = None
    write: str | None = None

    def flags(self, folder: Path) -> list[str]:
        """Returns the options of a daemon with this temporary folder."""
        path = self.path.absolute() if self.path else folder / "disk"
        flags = [f"--disk-path={path}", f"--disk-size={self.size}"]
        flags += [f"--set=disk.write={self.write}"] if self.write else []
        return flags if self.path else [*flags, _SKIP_FINAL_WRITES]


class _DiskState(msgspec.Struct, frozen=True):
    """The part of the daemon's status that is about the disk tier: open or down, for example, and why it is down."""

    standing: str = ""
    trouble: str = ""


class _DaemonState(msgspec.Struct, frozen=True):
    """The part of the daemon's status that is read here."""

    disk: _DiskState = _DiskState()


class PrivateDaemon:
    """A `pagetierd` that evicts only when a page needs the memory. As a context manager it serves until the exit.

    Args:
        arena: The size of its arena, in the form of the daemon's option.
        page_bytes: The size of the stored pages; each takes one frame.
        disk: Its disk tier; None for none.

    Raises:
        DaemonError: The daemon does not start.
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
            f"--set=arena.frame_size={frame_bytes(page_bytes)}",
            "--set=evict.free=0",
            *(disk.flags(Path(self._folder.name)) if disk else []),
        )

    def __enter__(self) -> Self:
        try:
            self._until(lambda: accepts_clients(self.socket, "pagetier-replay"))
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
            # A separate session, so that Ctrl-C does not reach the daemon and it outlives the clients.
            return subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

    def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            if self._process.poll() is not None:
                why = "\n".join(map(sentence_of, self._log.read_text().splitlines()))
                raise DaemonError(why, self._process.returncode)
            clock.sleep(_PAUSE_S)

    def _disk_is_open(self) -> bool:
        """Returns whether the disk tier is open. Raises DaemonError if it cannot be used."""
        try:
            text = observe(self.socket).status()
        except (LinkError, ShmError):
            return False
        disk = (msgspec.json.decode(text, type=_DaemonState) if text else _DaemonState()).disk
        if disk.standing == "down":
            raise DaemonError(f"cannot use the disk: {disk.trouble}", _REFUSED)
        return disk.standing == "open"

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
    """Removes the segments of a killed daemon by replacing them with the smallest ones and removing those."""
    smallest = Geometry(frame_bytes=LEAST_FRAME_BYTES, frames=1, entries=1, spaces=1)
    take(SegmentRequest(name, smallest, BUILD, Leftovers.DISCARD)).remove()
