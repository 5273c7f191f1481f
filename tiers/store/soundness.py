"""Whether what a former run left can be trusted.

Commits are not synced. While the host lives, its page cache holds them whatever becomes of processes. After a power
loss the disk holds some of what was written since the last sync and not the rest; the state file says whether there
was anything, and then the environments are proven or given up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from . import files

_STATE: Final = "state"
_NO_BOOT: Final = "distrusted"  # as if it were of another boot
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PR_SET_PDEATHSIG: Final = 1
# Offline, by reading: nothing that lies in the file can crash it, and LMDB opens it only when it is sound. A process of
# its own, which can be ended, and which ends with who wanted it, also if he is gone already.
_PROOF: Final = f"""
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, signal.SIGKILL)
if os.getppid() != int(sys.argv[2]):
    sys.exit("nobody waits for it")
from lmdb.verify import VerifyError, verify
try:
    found = verify(sys.argv[1], subdir=False)
except (VerifyError, OSError) as error:
    found = [str(error)]
if found:
    sys.exit(found[0])
from pagetier.tiers.store.counting import miscounted
sys.exit(miscounted(sys.argv[1]) or 0)
"""


@functools.cache
def boot_id() -> str:
    """Changes whenever the host starts."""
    return _BOOT_ID.read_text().strip()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the state file. boot: of the host, when it was written."""

    format: int
    frame_bytes: int
    environments: int
    boot: str
    clean: bool
    last_sync: int = 0

    @property
    def doubted(self) -> bool:
        """Whether it is to be proven whatever became of the host."""
        return self.boot == _NO_BOOT


def read_state(folder: Path) -> State | None:
    """None where there is none. Raises MsgspecError or UnicodeDecodeError where it can not be understood, OSError."""
    try:
        return msgspec.json.decode((folder / _STATE).read_bytes(), type=State)
    except FileNotFoundError:
        return None


class Journal:
    """The state file. Everything in it is on the disk when a method returns; they raise OSError where that fails."""

    def __init__(self, folder: Path, state: State) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._distrusted = False
        self._written = True  # as far as is known; a write that failed may have left what it wrote, or what was there
        self.state = state

    def mark_dirty(self) -> None:
        """Before the first change after a sync. Cheap where it is marked already."""
        with self._lock:
            boot = _NO_BOOT if self._distrusted else boot_id()
            if not self._written or self.state.clean or self.state.boot != boot:
                self._write(msgspec.structs.replace(self.state, clean=False, boot=boot))

    def mark_synced(self, when: int, *, clean: bool) -> None:
        """After a sync that began at `when`. clean: nothing was changed since."""
        with self._lock:
            if not self._distrusted:
                self._write(msgspec.structs.replace(self.state, clean=clean, boot=boot_id(), last_sync=when))

    def doubt(self) -> None:
        """Who opens it next proves it first, unless mark_dirty() comes before."""
        with self._lock:
            self._write(msgspec.structs.replace(self.state, clean=False, boot=_NO_BOOT))

    def distrust(self) -> None:
        """Who opens it next proves it first, as after a power loss. For the rest of this run nothing changes that."""
        with self._lock:
            self._distrusted = True
            self._write(msgspec.structs.replace(self.state, clean=False, boot=_NO_BOOT))

    def _write(self, state: State) -> None:
        self._written = False
        files.write_atomically(self._folder / _STATE, msgspec.json.encode(state))
        self.state, self._written = state, True


def shortened(folder: Path) -> str:
    """Why the environment's file must not be mapped, or "". Touching what is not there would kill the process."""
    data = folder / files.DATA
    try:
        there, promised = data.stat().st_size, files.promised_bytes(data)
    except FileNotFoundError:
        return f"{data} is missing"
    if not promised:
        return f"{data} has meta pages that are not whole"
    return f"{data} has {there} bytes of {promised}" if there < promised else ""


def lengthened(folder: Path, most: int) -> bool:
    """Makes a file as long as its meta pages say, for prove() to judge. Raises OSError.

    most: bytes that it may have had; false where its meta pages say more, or nothing. A process that dies just behind
    a commit leaves out last pages that were free again: nothing is lost then.
    """
    data = folder / files.DATA
    promised = files.promised_bytes(data) if data.exists() else 0
    if not 0 < promised <= most:
        return False
    if data.stat().st_size < promised:
        os.truncate(data, promised)
    return True


def prove(folders: Sequence[Path], seconds: float) -> list[str]:
    """Of each environment why it can not be trusted, or "". All together take no longer than `seconds`."""
    ends = time.monotonic() + seconds
    with contextlib.ExitStack() as running:
        return list(_verdicts([running.enter_context(_proof(folder)) for folder in folders], ends))


@contextlib.contextmanager
def _proof(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", _PROOF, str(folder / files.DATA), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _verdicts(proofs: Sequence[subprocess.Popen[str]], ends: float) -> Iterator[str]:
    for proof in proofs:
        try:
            _, said = proof.communicate(timeout=max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            yield "proving it sound takes too long"
            continue
        yield "" if proof.returncode == 0 else said.strip().splitlines()[-1] if said.strip() else "the proof died"
