"""The memory and disk that a cache uses, measured from outside while it runs, and its state when it is idle."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from changing_folder import paths_in
from eventually import eventually
from pagetier.shm._core import Observer
from running_daemon import RunningDaemon

_SHM = Path("/dev/shm")
_BLOCK = 512
_SETTLING_S = 1.0


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that may be used: by frames of the arena; by shared memory in total; on disk.

    None: no limit is checked.
    """

    arena: int
    shm: int | None = None
    disk: int | None = None


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes used at one time. `at` is CLOCK_MONOTONIC in ns."""

    at: int
    arena: int
    shm: int = 0
    disk: int = 0


class Attachment(msgspec.Struct, frozen=True):
    """An attached process and the number of pages that it pins."""

    pid: int
    name: str
    pins: int


class EndState(msgspec.Struct, frozen=True, kw_only=True):
    """An idle cache.

    Attributes:
        integrity: The findings of check_integrity().
        attached: All attached processes and their pins.
        open_entries: The number of pages being written.
        leftovers: Names in /dev/shm that should not exist.
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
    """Returns a sample of the daemon of this name, with its disk in a folder."""
    header = observer.header()
    shm = _allocated(_SHM.glob(f"{name}.*"))
    on_disk = _allocated(paths_in(disk)) if disk is not None else 0
    return Sample(at=time.monotonic_ns(), arena=header.used_frames * header.frame_bytes, shm=shm, disk=on_disk)


def _allocated(paths: Iterable[Path]) -> int:
    """Returns the bytes that files occupy. Files that are removed at the same time count as 0."""
    total = 0
    for path in paths:
        try:
            total += path.stat().st_blocks * _BLOCK
        except FileNotFoundError:
            continue
    return total


def segments_bytes(observer: Observer) -> int:
    """Returns the size of the three segments, which is the limit of shared memory."""
    header = observer.header()
    return header.index_bytes + header.locks_bytes + header.arena_bytes


def end_of(daemon: RunningDaemon, leftovers: Iterable[str] = ()) -> EndState:
    """Returns the state of an idle daemon, after all engines have ended or with those that stay.

    The daemon has one second to notice the last actions of processes.
    """
    eventually(lambda: not daemon.header().open_entries, _SETTLING_S)
    integrity, header = daemon.findings(), daemon.header()
    attached = tuple(Attachment(slot.pid, slot.name, slot.pins) for slot in daemon.slots())
    return EndState(
        integrity=tuple(integrity),
        frames=header.frames,
        used_frames=header.used_frames,
        free_frames=header.free_frames,
        pages=header.pages,
        open_entries=header.open_entries,
        attached=attached,
        leftovers=tuple(leftovers),
    )
