"""Opens, uses and leaves a tier after a power loss, while it is recorded.

Run as a process with its folder, a file for the boot ID, the file with the numbers of pages that may be in it, the
name of a deliberate bug, and the name of a store.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from disk_stores import StoreKind
from power_loss import mutants
from power_loss.reopening import PageReader, after_a_restart
from power_loss.workload import FRAME, NUMBERS, TERMS, RecordedTier
from power_loss.write_stream import Event, Kind

FIRST_PAGE = 30_000


def laid(folder: Path) -> list[Event]:
    """Returns events that create the current files, all of them synced."""
    events: list[Event] = []
    for path in sorted(folder.rglob("*")):
        inode, name = path.stat().st_ino, str(path).encode()
        if path.is_dir():
            events += [Event(Kind.FOLDER, 0, inode, 0, name)]
        else:
            events += [Event(Kind.MADE, 0, inode, 0, name), Event(Kind.WRITE, 0, inode, 0, path.read_bytes())]
            events += _synced(path)
    for path in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        events += _synced(path)
    return events


def _synced(path: Path) -> list[Event]:
    inode, name = path.stat().st_ino, str(path).encode()
    return [Event(kind, 0, inode, 0, name) for kind in (Kind.SYNCING, Kind.SYNCED)]


def main() -> None:
    """Runs the process; it ends as if it were killed."""
    folder, boot, numbers, mistake, store = sys.argv[1:]
    mutants.make(mistake)
    after_a_restart(Path(boot))
    recorded = RecordedTier(Path(folder), FIRST_PAGE, msgspec.convert(store, StoreKind))
    recorded.say("storing", msgspec.json.decode(Path(numbers).read_bytes(), type=list[int]))
    recorded.open(TERMS)
    reader = PageReader(recorded.tier, FRAME)
    recorded.say("stored", [NUMBERS[key] for key in reader.exact(reader.listed())])
    recorded.turn_over(1)
    recorded.sync()
    recorded.turn_over(1)
    os._exit(0)


if __name__ == "__main__":
    main()
