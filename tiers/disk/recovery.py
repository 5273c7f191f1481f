"""Decides whether the files of an earlier run can be trusted.

Commits are not synced. While the host runs, its page cache keeps them, whatever happens to processes. After a power
loss the disk has only some of what was written since the last sync. The state file tells whether anything was, and then
the environments are verified or discarded. After its workers failed, a folder is marked or discarded as a whole.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from pagetier.tiers.base import DoubtError, TierError
from pagetier.tiers.disk import data_file, file_system
from pagetier.tiers.disk.file_format import newest_of

_STATE: Final = "state"
_NO_BOOT: Final = "distrusted"  # treated like another boot
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
# The program that verifies one file. It is named, not imported: it knows LMDB's files, as the stores above do.
_PROOF: Final = "pagetier.tiers.lmdb.proof"


@functools.cache
def boot_id() -> str:
    """Returns an ID that changes whenever the host boots."""
    return _BOOT_ID.read_text().strip()


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the state file. `boot` is the host's boot ID when it was written."""

    format: int
    frame_bytes: int
    environments: int
    boot: str
    clean: bool
    last_sync: int = 0
    store: str = "lmdb"

    @property
    def as_left(self) -> str:
        """How the files were found if they can be trusted, one line."""
        return "as it was left" if self.format == newest_of(self.format) else f"as it was left, in format {self.format}"

    @property
    def doubted(self) -> bool:
        """Whether the files must be verified even if the host did not reboot."""
        return self.boot == _NO_BOOT


def read_state(folder: Path) -> State | None:
    """Returns the content of the state file; None if there is none.

    Raises OSError, and MsgspecError or UnicodeDecodeError if it is invalid.
    """
    try:
        return msgspec.json.decode(file_system.read_file(folder / _STATE), type=State)
    except FileNotFoundError:
        return None


class Journal:
    """The state file. Its content is durable when a method returns; the methods raise OSError if that fails.

    They raise TierError where the folder is no longer the one that was locked by `owner`: the file would vouch for
    files that were never verified.
    """

    def __init__(self, folder: Path, owner: int, state: State) -> None:
        self._folder = folder
        self._owner = owner
        self._lock = threading.Lock()
        self._distrusted = False
        # As far as is known: a failed write may have left the old or the new content. An old format is written again.
        self._written = state.format == newest_of(state.format)
        self.state = msgspec.structs.replace(state, format=newest_of(state.format))

    def mark_dirty(self) -> None:
        """Marks the files before the first change after a sync. Cheap if they are marked already."""
        with self._lock:
            boot = _NO_BOOT if self._distrusted else boot_id()
            if not self._written or self.state.clean or self.state.boot != boot:
                self._write(msgspec.structs.replace(self.state, clean=False, boot=boot))

    def mark_synced(self, when: int, *, clean: bool) -> None:
        """Records a sync that began at `when`; `clean` if nothing was changed since."""
        with self._lock:
            if not self._distrusted:
                self._write(msgspec.structs.replace(self.state, clean=clean, boot=boot_id(), last_sync=when))

    def doubt(self) -> None:
        """Makes the next opening verify the files, unless mark_dirty() is called before."""
        with self._lock:
            self._write(msgspec.structs.replace(self.state, clean=False, boot=_NO_BOOT))

    def distrust(self) -> None:
        """Makes the next opening verify the files, as after a power loss, whatever else happens in this run.

        It raises nothing where the disk refuses that: the caller reports the doubt, and the next worker records it.
        """
        with self._lock, contextlib.suppress(OSError, TierError):
            self._distrusted = True
            self._write(msgspec.structs.replace(self.state, clean=False, boot=_NO_BOOT))

    def _write(self, state: State) -> None:
        file_system.insist_on_owned(self._owner, self._folder)
        self._written = False
        file_system.write_atomically(self._folder / _STATE, msgspec.json.encode(state))
        self.state, self._written = state, True


def doubt(folder: Path) -> None:
    """Requires the next process that opens the folder to verify it first.

    Raises TierError, also if a process has the folder open.
    """
    with (
        _owned(folder) as owner,
        contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError),
    ):  # an unreadable state file causes a rebuild anyway
        state = read_state(folder)
        if state is not None:
            Journal(folder, owner, state).doubt()


def give_up(folder: Path) -> None:
    """Deletes the folder's content, so that the next process starts with an empty tier.

    Raises TierError, also if a process has the folder open.
    """
    with _owned(folder):
        for path in list(file_system.numbered_folders(folder)):
            file_system.remove_environment(path)


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[int]:
    """Locks the folder by a descriptor, creating it if it is missing, since it is about to be opened."""
    with file_system.converted_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = file_system.own(folder)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def shortened(folder: Path) -> str:
    """Returns why the environment's file must not be mapped, or "". Touching missing pages would kill the process."""
    data = folder / file_system.DATA
    try:
        there, expected = data.stat().st_size, data_file.expected_bytes(data)
    except FileNotFoundError:
        return f"{data} is missing"
    if not expected:
        return f"{data} has incomplete meta pages"
    return f"{data} has {there} bytes of {expected}" if there < expected else ""


def lengthened(folder: Path, most: int) -> bool:
    """Extends a file to the length in its meta pages, for prove() to verify. Raises OSError.

    A process that dies just after a commit leaves out pages at the end that were free again; then nothing is lost.

    Args:
        folder: The environment's folder.
        most: The largest length that the file may have had.

    Returns:
        False if the meta pages name a larger length, or none.
    """
    data = folder / file_system.DATA
    expected = data_file.expected_bytes(data) if data.exists() else 0
    if not 0 < expected <= most:
        return False
    if data.stat().st_size < expected:
        os.truncate(data, expected)
    return True


def prove(folders: Sequence[Path], seconds: float) -> list[str]:
    """Returns for each environment why it cannot be trusted, or "".

    Args:
        folders: The environments.
        seconds: How much processor time each may take: in an unsound tree it may never end. It waits for a disk or a
            core for any time, because that says nothing about the files.

    Raises:
        DoubtError: The system killed a process that verified one.
    """
    with contextlib.ExitStack() as running:
        proofs = [running.enter_context(_proof(folder, seconds)) for folder in folders]
        return [_verdict(proof, folder) for proof, folder in zip(proofs, folders, strict=True)]


@contextlib.contextmanager
def _proof(folder: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", _PROOF, str(folder / file_system.DATA), str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            _, most = resource.prlimit(process.pid, resource.RLIMIT_CPU)
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (math.ceil(seconds), most))
            yield process
        finally:
            process.kill()


def _verdict(proof: subprocess.Popen[str], folder: Path) -> str:
    _, said = proof.communicate()
    if proof.returncode == -signal.SIGKILL:
        why = f"the process that verifies {folder} was killed, maybe because memory ran out (dmesg)"
        raise DoubtError(f"{why}: the next disk worker verifies it")
    if proof.returncode == -signal.SIGXCPU:
        return "verifying it takes too long"
    reason = said.strip() or "the verifying process died"
    return reason.splitlines()[-1] if proof.returncode else ""
