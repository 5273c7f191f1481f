"""Lists the operations of the fault sweeps: all that a worker does with its disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from disk_faults.case import STOP_S
from kill_points.disk_lifecycles import StartWithDisk, StartWithNewDisk, StartWithSmallerDisk, StopWithDisk
from kill_points.disk_operations import (
    EvictToDisk,
    FillDisk,
    FlushDisk,
    LoadFromDisk,
    ReadDamaged,
    SaveAll,
    WriteBehind,
)
from kill_points.operation import Operation

SCENARIO: Final[tuple[type[Operation], ...]] = (
    WriteBehind,
    EvictToDisk,
    FillDisk,
    LoadFromDisk,
    ReadDamaged,
    FlushDisk,
    SaveAll,
    StartWithDisk,
    StartWithNewDisk,
    StartWithSmallerDisk,
    StopWithDisk,
)
FEW: Final = (WriteBehind, LoadFromDisk, SaveAll, StartWithDisk, StartWithSmallerDisk, StopWithDisk)
"""The operations that are always tested."""


def flags(kind: type[Operation], folder: Path) -> tuple[str, ...]:
    """Returns the flags of the daemon: those of the operation, and a short timeout for the disk when it stops."""
    return *kind.flags(folder), "--disk-stop-timeout", f"{STOP_S}s"
