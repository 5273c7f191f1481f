"""What a build leaves: warm segments and a disk tier with the same pages, recorded for the tests of later builds.

Run with the build whose format is about to change: .venv/bin/python tests/harness/recorded_leftovers.py FILE
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from keyed_pages import prompt, store
from named_segments import KINDS, SHM
from running_daemon import RunningDaemon

FRAME = 4096
ARENA = "256KiB"
DISK = (
    "--disk-size",
    "16MiB",
    "--constant",
    "disk.environments=1",
    "--set",
    "disk.write=through",
    "--set",
    "disk.store=lmdb",
)
KEYS = prompt(3, pages=6)


def daemon_with_disk(disk: Path, *more: str) -> RunningDaemon:
    """Returns a daemon with the sizes of the recording, and a disk tier in this folder. It is not started yet."""
    return RunningDaemon(ARENA, str(FRAME), "--constant", "index.namespaces=8", "--disk-path", str(disk), *DISK, *more)


def record(file: Path) -> None:
    """Stores pages in memory and on disk, kills the daemon, and packs what it left."""
    with tempfile.TemporaryDirectory() as folder, daemon_with_disk(Path(folder)) as daemon:
        with daemon.client() as client:
            assert store(client, KEYS, FRAME).stored == len(KEYS)
            daemon.until_written()
            daemon.kill()
        with tarfile.open(file, "w:xz") as packed:
            for kind in KINDS:
                packed.add(SHM / f"{daemon.name}.{kind}", kind)
            packed.add(folder, "disk")
        daemon.start()


def unpack(file: Path, folder: Path) -> None:
    """Unpacks what was recorded into a folder: the files `index`, `locks` and `arena`, and the folder `disk`."""
    with tarfile.open(file) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4
        packed.extractall(folder)


def place_segments(folder: Path, name: str) -> None:
    """Puts unpacked segments where a daemon of this name finds them."""
    for kind in KINDS:
        target = SHM / f"{name}.{kind}"
        target.touch(0o600)
        target.write_bytes((folder / kind).read_bytes())


if __name__ == "__main__":
    record(Path(sys.argv[1]))
