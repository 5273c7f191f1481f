"""Controls the system calls between a disk worker and its disk: gate.c makes them fail, and records them."""

from __future__ import annotations

import os
import struct
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from mapped_file import MappedFile

VARIABLE: Final = "PT_GATE"
_WANTED: Final = struct.Struct("<IIIIIiIII256s24s")
_NOTE: Final = struct.Struct("<III24s")
_NOTES: Final = 1 << 15
_BYTES: Final = _WANTED.size + _NOTES * _NOTE.size
_QUIET, _ARMED = range(2)
_STATE: Final = struct.Struct("<I")
_STRUCK: Final = struct.Struct("<II")
_STRUCK_AT: Final = 24
_NOTED: Final = struct.Struct("<I")
_NOTED_AT: Final = 32


class Call(Enum):
    """The disk calls of the worker; the value is the number of a bit in gate.c.

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


ALL: Final = frozenset(Call)
WRITES: Final = frozenset({Call.WRITE, Call.PWRITE, Call.WRITEV})
CHANGES: Final = ALL - {Call.PREAD, Call.OPEN, Call.SYNC_FILE_RANGE}
"""The calls after which the disk may hold data that was not there before."""


class Action(Enum):
    """The effect of a fault on a call.

    DIE kills the process before the call. TEAR kills it in the middle of a write, or directly after another call.

    FAIL returns an error without the call. SHORTEN makes the call with half of the bytes. HANG blocks the call until
    the gate is opened, and makes it then.
    """

    DIE = 1
    TEAR = 2
    FAIL = 3
    SHORTEN = 4
    HANG = 5


class Fault(msgspec.Struct, frozen=True):
    """A fault: the number-th of these calls from now on goes wrong.

    Attributes:
        action: The effect.
        calls: The calls that count.
        number: Which of them goes wrong, from 1.
        error: The errno, for FAIL.
        lasting: All later calls go wrong, too, until the gate is opened.
        file: The end of the file names that count.
    """

    action: Action
    calls: frozenset[Call]
    number: int = 1
    error: int = 0
    file: str = ""
    lasting: bool = False

    def __str__(self) -> str:
        names = ", ".join(sorted(call.name.lower() for call in self.calls)) if len(self.calls) < 4 else "call"
        error = f" {os.strerror(self.error)}" if self.error else ""
        more = " and all later" if self.lasting else ""
        where = f" on {self.file}" if self.file else ""
        return f"{self.action.name.lower()}{error} at {names} {self.number}{more}{where}"


class RecordedCall(msgspec.Struct, frozen=True):
    """A call that was made, on a file named relative to the tier's folder ("": the folder itself)."""

    call: Call
    file: str


class Gate(MappedFile):
    """The gate of a scene, between the workers of a tier and its folder. It is used by one test at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _BYTES)
        self._folder = b""

    def watch(self, folder: Path) -> None:
        """Counts calls on the files in this folder from now on."""
        self._folder = os.fsencode(folder.resolve())
        self.forget()

    def arm(self, fault: Fault) -> None:
        """Arms a fault."""
        self._put(fault)
        _STATE.pack_into(self.memory, 0, _ARMED)

    def open(self) -> None:
        """Removes the fault; calls that hang continue."""
        _STATE.pack_into(self.memory, 0, _QUIET)

    def _put(self, fault: Fault | None) -> None:
        self.open()
        words: tuple[int, ...] = (0, 0, 0, 0, 0)
        file = b""
        if fault is not None:
            calls = sum(1 << call.value for call in fault.calls)
            words = (calls, fault.action.value, fault.error, int(fault.lasting), fault.number)
            file = fault.file.encode()
        noted = _NOTED.unpack_from(self.memory, _NOTED_AT)[0]
        _WANTED.pack_into(self.memory, 0, _QUIET, *words, 0, 0, noted, self._folder, file)

    @property
    def struck(self) -> int:
        """The number of calls that went wrong since the gate was armed."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[0])

    @property
    def pid(self) -> int:
        """The pid of the worker whose call went wrong last; 0 if there is none."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[1])

    def forget(self) -> None:
        """Removes the fault and clears the record of calls. A call at this very moment may be lost."""
        self._put(None)
        _NOTED.pack_into(self.memory, _NOTED_AT, 0)
        self.memory[_WANTED.size :] = bytes(_BYTES - _WANTED.size)

    def noted(self) -> list[RecordedCall]:
        """Returns the calls since the last forget(), in order. Raises ValueError if there were too many to record."""
        count = _NOTED.unpack_from(self.memory, _NOTED_AT)[0]
        if count > _NOTES:
            raise ValueError(f"{count} calls were made, only {_NOTES} can be recorded")
        notes = _NOTE.iter_unpack(self.memory[_WANTED.size : _WANTED.size + count * _NOTE.size])
        return [RecordedCall(Call(call), name.rstrip(b"\0").decode()) for whole, call, _, name in notes if whole]

    def counts(self) -> Counter[RecordedCall]:
        """Returns how often each call was made."""
        return Counter(self.noted())

    def close(self) -> None:
        """Unmaps the file; the caller removes it."""
        self.open()
        super().close()
