"""What a cache takes, looked at from outside: while it runs, and when it is at rest."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from pagetier.shm._core import Observer
from running_daemon import RunningDaemon, eventually

_SHM = Path("/dev/shm")
_BLOCK = 512
_SETTLING_S = 1.0


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """What may be taken, in bytes: frames of the arena; shared memory in all; the disk. None: nothing is claimed."""

    arena: int
    shm: int | None = None
    disk: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was taken at a moment, in bytes. at: CLOCK_MONOTONIC in ns."""

    at: int
    arena: int
    shm: int = 0
    disk: int = 0


class Attachment(msgspec.Struct, frozen=True):
    """Who is attached, and how many pages it pins."""

    pid: int
    name: str
    pins: int


class EndState(msgspec.Struct, frozen=True, kw_only=True):
    """A cache at rest. integrity: what check_integrity() finds. attached: all who have a slot, and their pins.

    open_entries: pages that are being written. leftovers: names in /dev/shm that ought not to be there.
    """

    integrity: tuple[str, ...]
    frames: int
    used_frames: int
    free_frames: int
    pages: int
    open_entries: int
    attached: tuple[Attachment, ...]
    leftovers: tuple[str, ...] = ()


def taken(observer: Observer, name: str, disk: Path | None = None) -> Sample:
    """A sample of the daemon of this name, with its disk in a folder."""
    header = observer.header()
    shm = _allocated(_SHM.glob(f"{name}.*"))
    on_disk = _allocated(disk.rglob("*")) if disk is not None else 0
    return Sample(at=time.monotonic_ns(), arena=header["used_frames"] * header["frame_bytes"], shm=shm, disk=on_disk)


def _allocated(paths: Iterable[Path]) -> int:
    """Bytes that files really take; what goes meanwhile takes none."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_blocks * _BLOCK
        except FileNotFoundError:
            continue
    return total


def segments_bytes(observer: Observer) -> int:
    """What the three segments take when all of their memory was used: the cap of shared memory."""
    header = observer.header()
    return sum(header[f"{kind}_bytes"] for kind in ("index", "locks", "arena"))


def end_of(daemon: RunningDaemon, leftovers: Iterable[str] = ()) -> EndState:
    """How a daemon is that lives and has nothing to do: for after all engines are gone, or with those that stay.

    It is given a second to see what processes did last.
    """
    eventually(lambda: not daemon.header()["open_entries"], _SETTLING_S)
    integrity, header = daemon.findings(), daemon.header()
    attached = tuple(Attachment(slot["pid"], slot["name"], slot["pins"]) for slot in daemon.slots())
    return EndState(
        integrity=tuple(integrity),
        frames=header["frames"],
        used_frames=header["used_frames"],
        free_frames=header["free_frames"],
        pages=header["pages"],
        open_entries=header["open_entries"],
        attached=attached,
        leftovers=tuple(leftovers),
    )
