"""What goes wrong between a tier's worker and its disk: written for gate.c to read, which notes what was called."""

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
    """What the worker asks of its disk; the value is a bit's number in gate.c. PREAD: preadv, WRITEV: pwritev, too."""

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
"""All after which something may be on the disk that was not there before."""


class Action(Enum):
    """What becomes of a call. DIE: its process dies before it. TEAR: in the middle of writing, or right behind it.

    FAIL: it is not made, and an error is told. SHORTEN: it is made with half of the bytes. HOLD: it hangs until
    nothing is wanted any more, and is made then.
    """

    DIE = 1
    TEAR = 2
    FAIL = 3
    SHORTEN = 4
    HOLD = 5


class Fault(msgspec.Struct, frozen=True):
    """What is to go wrong: the number-th of these calls from now on, on a file whose name ends so.

    error: an errno, of FAIL. lasting: all later ones, too, until the gate is opened.
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


class Noted(msgspec.Struct, frozen=True):
    """A call that was made, on a file by its name below the tier's folder ("": the folder itself)."""

    call: Call
    file: str


class Gate(MappedFile):
    """One scene's, over the workers of a tier in one folder. Of one test at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _BYTES)
        self._folder = b""

    def watch(self, folder: Path) -> None:
        """Calls on the files in this folder are those that count, from now on."""
        self._folder = os.fsencode(folder.resolve())
        self.forget()

    def arm(self, fault: Fault) -> None:
        """From now on it waits for its call."""
        self._put(fault)
        _STATE.pack_into(self.memory, 0, _ARMED)

    def open(self) -> None:
        """Nothing goes wrong any more, and what hung goes on."""
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
        """How many calls went wrong since it was armed."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[0])

    @property
    def pid(self) -> int:
        """Of the worker whose call went wrong last; 0 if none did."""
        return int(_STRUCK.unpack_from(self.memory, _STRUCK_AT)[1])

    def forget(self) -> None:
        """Nothing goes wrong any more, and notes are taken anew. What is called in this very moment may be lost."""
        self._put(None)
        _NOTED.pack_into(self.memory, _NOTED_AT, 0)
        self.memory[_WANTED.size :] = bytes(_BYTES - _WANTED.size)

    def noted(self) -> list[Noted]:
        """The calls since then, in their order. Raises ValueError where there were too many to note."""
        count = _NOTED.unpack_from(self.memory, _NOTED_AT)[0]
        if count > _NOTES:
            raise ValueError(f"{count} calls are more than the {_NOTES} that can be noted")
        notes = _NOTE.iter_unpack(self.memory[_WANTED.size : _WANTED.size + count * _NOTE.size])
        return [Noted(Call(call), name.rstrip(b"\0").decode()) for whole, call, _, name in notes if whole]

    def counts(self) -> Counter[Noted]:
        """How often which of them was made."""
        return Counter(self.noted())

    def close(self) -> None:
        """The file is the caller's to remove."""
        self.open()
        super().close()
