"""Reads measurements of processes, files and the index, about once a second."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from changing_folder import paths_in
from oracle.samples import taken
from simulator.cluster import Cluster
from simulator.scenes import MIB

_RSS_ANON: Final = re.compile(rb"^RssAnon:\s+(\d+) kB", re.MULTILINE)
_LOCK_FILE: Final = "lock.mdb"
_READERS_FROM, _READER_BYTES, _READERS_AT = 128, 64, 56  # as in LMDB 0.9 on 64 bits; a test verifies it


class Vitals(msgspec.Struct, frozen=True):
    """Measurements of a running process: its private memory in bytes (RssAnon), and its open descriptors."""

    pid: int
    rss: int
    descriptors: int


class Reading(msgspec.Struct, frozen=True):
    """All measurements at a moment.

    Attributes:
        at: Seconds since the measurement began.
        processes: The measurements of daemon, disk worker and probe, as far as they run.
        numbers: "LMDB readers": slots of the reader tables in use; "disk" and "/dev/shm" in MiB; "slots" of attached
            processes; "pages being written".
    """

    at: float
    processes: Mapping[str, Vitals]
    numbers: Mapping[str, float]


def reading_of(cluster: Cluster, probe: int, at: float) -> Reading:
    """Returns a reading of a cluster and the process `probe`."""
    daemon, header = cluster.daemon, cluster.observer.header()
    sample = taken(cluster.observer, daemon.name, daemon.disk)
    numbers = {
        "LMDB readers": readers(daemon.disk),
        "/dev/shm": sample.shm / MIB,
        "slots": len(cluster.observer.attachments_with_pins()),
        "pages being written": header.open_entries,
        "disk": sample.disk / MIB,
    }
    return Reading(at, vitals_in(cluster, probe), numbers)


def vitals_in(cluster: Cluster, probe: int = 0) -> dict[str, Vitals]:
    """Returns the measurements of the daemon, a worker and the process `probe`, as far as they run."""
    daemon = cluster.daemon
    serving = daemon.serving.pid if daemon.serving else 0
    pids = {"daemon": serving, "worker": next(iter(daemon.workers()), 0), "probe": probe}
    return {role: found for role, pid in pids.items() if pid and (found := vitals(pid))}


def vitals(pid: int) -> Vitals | None:
    """Returns the measurements of a process; None if it has ended or may not be read."""
    try:
        found = _RSS_ANON.search(Path(f"/proc/{pid}/status").read_bytes())
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    return Vitals(pid, 1024 * int(found[1]), descriptors) if found else None


def readers(disk: Path) -> int:
    """Returns the number of slots of LMDB's reader tables in use, in all environments below the folder."""
    return sum(_readers_in(path) for path in paths_in(disk) if path.name == _LOCK_FILE)


def _readers_in(path: Path) -> int:
    """Returns the number of slots with a pid in a lock file; 0 if it disappears."""
    table = b""
    with suppress(FileNotFoundError):
        table = path.read_bytes()
    if len(table) < _READERS_FROM:
        return 0
    (used,) = struct.unpack_from("<I", table, _READERS_AT)
    ends = min(_READERS_FROM + used * _READER_BYTES, len(table))
    pids = (struct.unpack_from("<I", table, at + 8)[0] for at in range(_READERS_FROM, ends, _READER_BYTES))
    return sum(pid > 0 for pid in pids)
