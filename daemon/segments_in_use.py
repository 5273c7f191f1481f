"""Says what the daemon that uses the segments is doing, to a daemon that cannot start for that reason."""

from __future__ import annotations

import contextlib
from typing import Final

from pagetier.daemon.config.schema import Config
from pagetier.daemon.stats.snapshot_reader import read_status
from pagetier.daemon.status.phase import Phase, PhaseProgress
from pagetier.shm._core import ShmError
from pagetier.shm.segment_files import KINDS, InUseError, observe_and_close, open_all
from pagetier.shm.units import format_size, spell_duration

_OBSERVED: Final = ("index", "locks")


def why_in_use(config: Config, error: InUseError) -> str:
    """Returns the error, or that the other daemon is stopping and how long that may take."""
    progress = _progress_of(config.name)
    if progress.phase is not Phase.STOPPING:
        return str(error)
    left = progress.total - progress.done
    writes = f", with {format_size(left)} to write to its disk" if left else ""
    most = f"at most {spell_duration(config.disk.stop_timeout)} (disk.stop_timeout)"
    return f"the daemon that uses segments {config.name!r} is stopping{writes}: start again when it has ended, {most}"


def _progress_of(name: str) -> PhaseProgress:
    with contextlib.suppress(ShmError, OSError):  # it has ended by now, or is only just beginning
        return read_status(observe_and_close(open_all(name, *_OBSERVED, read_only=frozenset(KINDS)))).progress
    return PhaseProgress(Phase.UNKNOWN)
