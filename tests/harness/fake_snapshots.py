"""Invented snapshots of a cache, for the code that shows them."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from pagetier.daemon.cli.top.history import History, Moment
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.stats.snapshot import (
    ClientStats,
    DaemonStats,
    DiskWork,
    PageTier,
    Snapshot,
    StoreStats,
    Tiers,
)
from pagetier.daemon.status.disk_report import DiskReport, Standing
from pagetier.daemon.status.phase import Phase

_T = TypeVar("_T", bound=msgspec.Struct)


def snapshot(
    *, hits: int = 0, misses: int = 0, segments: str = "00", pid: int = 7, lookups: int = 0, many: int = 1
) -> Snapshot:
    """Returns a snapshot with one client and a disk. All numbers that are not given are `many`."""
    return Snapshot(
        daemon=filled(DaemonStats, many, build="", segments=segments, phase=Phase.SERVING),
        tiers=Tiers(memory=filled(PageTier, many, hits=hits, misses=misses), disk=filled(PageTier, many)),
        disk=DiskReport(standing=Standing.OPEN, last_sync=1.0),
        disk_work=filled(DiskWork, many),
        lookups=filled(LookupStats, many, memory_tokens=hits, disk_tokens=0, missed_tokens=misses),
        stores=filled(StoreStats, many),
        namespaces=(),
        clients=(client(pid=pid, lookups=lookups, many=many),),
    )


def history(*moments: tuple[float, Snapshot]) -> History:
    """Returns a history of snapshots at these times."""
    made = History()
    for at, seen in moments:
        made.add(Moment(at, seen))
    return made


def client(*, pid: int = 7, lookups: int = 0, many: int = 1, name: str = "engine") -> ClientStats:
    """Returns the statistics of an attached client."""
    return filled(ClientStats, many, slot=0, pid=pid, name=name, lookups=lookups, age_seconds=86_400.0 * 99)


def filled(kind: type[_T], many: int, **given: object) -> _T:
    """Returns a record with these fields; all others are `many`."""
    numbers: dict[str, object] = dict.fromkeys(kind.__struct_fields__, many)
    return kind(**{**numbers, **given})
