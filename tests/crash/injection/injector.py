"""Controls what inject.c injects into the processes of a test, and reads which failpoints and calls they met."""

from __future__ import annotations

import mmap
import os
import struct
from collections import Counter
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final, Self

import msgspec

VARIABLE: Final = "PT_INJECT"
ANYBODY: Final = 0
_WANTED: Final = struct.Struct("<IIIIIIiII256s40s")
_RECORD: Final = struct.Struct("<IIII40s")
_RECORDS: Final = 4096
_BYTES: Final = _WANTED.size + _RECORDS * _RECORD.size
_STATE: Final = struct.Struct("<I")
_QUIET, _ARMED = range(2)
_STRUCK: Final = struct.Struct("<II")
_STRUCK_AT: Final = 28


class Site(IntEnum):
    """A failpoint, or a disk call of the worker; the value is the number of a bit in injector.h.

    PREAD includes preadv, WRITEV pwritev.
    """

    WRITE = 0
    PWRITE = 1
    WRITEV = 2
    PREAD = 3
    FDATASYNC = 4
    FSYNC = 5
    MSYNC = 6
    FTRUNCATE = 7
    TRUNCATE = 8
    FALLOCATE = 9
    SYNC_FILE_RANGE = 10
    RENAME = 11
    UNLINK = 12
    MKDIR = 13
    RMDIR = 14
    OPEN = 15
    FAILPOINT = 16


POINTS: Final = frozenset({Site.FAILPOINT})
CALLS: Final = frozenset(Site) - POINTS
WRITES: Final = frozenset({Site.WRITE, Site.PWRITE, Site.WRITEV})
CHANGES: Final = CALLS - {Site.PREAD, Site.OPEN, Site.SYNC_FILE_RANGE}
"""The calls after which the disk may hold data that was not there before."""


class Action(Enum):
    """The effect on a process, or on its call.

    DIE kills the process, before the call. TEAR kills it in the middle of a write, or directly after another call.
    STOP stops it. FAIL returns an error without the call. SHORTEN makes the call with half of the bytes. HANG blocks
    the call until the injector is disarmed, and makes it then.
    """

    DIE = 1
    TEAR = 2
    FAIL = 3
    SHORTEN = 4
    HANG = 5
    STOP = 6


class Role(Enum):
    """The process that is killed, stopped or disturbed."""

    ENGINE = "engine"
    DAEMON = "daemon"
    TIER = "tier worker"


class Case(msgspec.Struct, frozen=True):
    """An injection: the number-th of these sites from now on goes wrong.

    Attributes:
        action: The effect.
        sites: The sites that count.
        name: The failpoint; or the end of the names of the files whose calls count.
        number: Which of them goes wrong, from 1.
        role: The process that meets it.
        error: The errno, for FAIL.
        lasting: All later sites go wrong, too, until the injector is disarmed.
    """

    action: Action
    sites: frozenset[Site]
    name: str = ""
    number: int = 1
    role: Role = Role.TIER
    error: int = 0
    lasting: bool = False

    def __str__(self) -> str:
        if self.sites == POINTS:
            return f"{self.role.value} {'killed' if self.action is Action.DIE else 'stopped'} at {self.name}"
        names = ", ".join(sorted(site.name.lower() for site in self.sites)) if len(self.sites) < 4 else "call"
        error = f" {os.strerror(self.error)}" if self.error else ""
        more = " and all later" if self.lasting else ""
        where = f" on {self.name}" if self.name else ""
        return f"{self.action.name.lower()}{error} at {names} {self.number}{more}{where}"


class Met(msgspec.Struct, frozen=True):
    """A site that was met: a failpoint, or a call on a file named relative to the tier's folder ("": the folder)."""

    site: Site
    name: str
    pid: int = ANYBODY


class Injector:
    """The control file of a test, used by one case at a time. Processes find it by $PT_INJECT when they start.

    This process and the tested ones map it, so that each sees what the others write. `memory` is valid until close().
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("w+b") as file:
            file.truncate(_BYTES)
            self.memory = mmap.mmap(file.fileno(), _BYTES)
        self._folder = b""

    def watch(self, folder: Path) -> None:
        """Counts calls on the files in this folder from now on."""
        self._folder = os.fsencode(folder.resolve())
        self.forget()

    def arm(self, case: Case, pid: int = ANYBODY) -> None:
        """Arms a case for the process with this pid."""
        self.disarm()
        sites = sum(1 << site for site in case.sites)
        words = (sites, case.action.value, case.error, int(case.lasting), pid, case.number, 0, 0)
        _WANTED.pack_into(self.memory, 0, _QUIET, *words, self._folder, case.name.encode())
        _STATE.pack_into(self.memory, 0, _ARMED)

    def disarm(self) -> None:
        """Ends the injection; calls that hang continue."""
        _STATE.pack_into(self.memory, 0, _QUIET)

    @property
    def struck(self) -> int:
        """How often it struck since a case was armed."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[0])

    @property
    def pid(self) -> int:
        """The pid of the process that it struck last; ANYBODY if there is none."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[1])

    def forget(self) -> None:
        """Disarms it and clears the record of sites. A site that is met at this very moment may be lost."""
        _WANTED.pack_into(self.memory, 0, _QUIET, *[0] * 8, self._folder, b"")
        self.memory[_WANTED.size :] = bytes(_BYTES - _WANTED.size)

    def met(self) -> Counter[Met]:
        """Returns how often each process met each site since the last forget()."""
        found: Counter[Met] = Counter()
        for pid, times, named, site, name in _RECORD.iter_unpack(self.memory[_WANTED.size :]):
            if named:
                found[Met(Site(site), name.rstrip(b"\0").decode(), pid)] += times
        return found

    def calls(self) -> Counter[Met]:
        """Returns how often each call was made since the last forget(), by any process."""
        found: Counter[Met] = Counter()
        for met, times in self.met().items():
            if met.site in CALLS:
                found[Met(met.site, met.name)] += times
        return found

    def close(self) -> None:
        """Unmaps the file; the caller removes it."""
        self.disarm()
        self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
