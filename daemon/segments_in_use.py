"""Says whether a daemon uses the segments and what it is doing, to a daemon that cannot start."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import posix_ipc

from pagetier.daemon.config.schema import Config
from pagetier.daemon.running_daemon import holder_of, sockets_of
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.shm._core import ShmError
from pagetier.shm.segment_files import KINDS, InUseError, lock, observe_and_close, open_all, opened
from pagetier.shm.units import format_size, spell_duration

_OBSERVED: Final = ("index", "locks")
_SHARED_MEMORY: Final = Path("/dev/shm")


def require_unused(name: str) -> None:
    """Raises InUseError if a daemon uses the segments, ShmError if they are another user's. Locks them for a moment."""
    with contextlib.suppress(posix_ipc.ExistentialError), opened(name, "index") as index:
        lock(name, index)


def why_in_use(config: Config, error: InUseError) -> str:
    """Returns the error and which daemon it is, or that this is stopping and how long that may take."""
    progress = _progress_of(config.name)
    if progress.phase is not Phase.STOPPING:
        return f"{error}{_which(config.name)}"
    left = progress.total - progress.done
    writes = f", with {format_size(left)} to write to its disk" if left else ""
    most = f"at most {spell_duration(config.disk.stop_timeout)} (disk.stop_timeout)"
    return f"the daemon that uses segments {config.name!r} is stopping{writes}: start again when it has ended, {most}"


def _which(name: str) -> str:
    """Returns the PID and the sockets of the daemon that uses the segments, as far as they can be seen from here."""
    with contextlib.suppress(OSError):
        if pid := holder_of((_SHARED_MEMORY / f"{name}.index").lstat()):
            sockets = ", ".join(sockets_of(pid))
            return f"; the other daemon is process {pid}{f' and listens on {sockets}' if sockets else ''}"
    return ""


def _progress_of(name: str) -> PhaseProgress:
    with contextlib.suppress(ShmError, OSError):  # it has ended by now, or is only just beginning
        return read_status(observe_and_close(open_all(name, *_OBSERVED, read_only=frozenset(KINDS)))).progress
    return PhaseProgress(Phase.UNKNOWN)
