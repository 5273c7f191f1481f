"""Controls the failpoints: writes which process to kill for crossing.c to read, and reads what was crossed."""

from __future__ import annotations

import signal
import struct
import time
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from mapped_file import MappedFile

VARIABLE: Final = "PT_POINTS"
_WANTED: Final = struct.Struct("<IIiII40s4x")
_RECORD: Final = struct.Struct("<III40s4x")
_RECORDS: Final = 4096
_BYTES: Final = _WANTED.size + _RECORDS * _RECORD.size
_QUIET, _ARMED, _FIRED = range(3)
_STATE: Final = struct.Struct("<I")
_FIRED_AT: Final = 16
ANYBODY: Final = 0


class Action(Enum):
    """The effect of a failpoint on the process that crosses it."""

    KILL = signal.SIGKILL
    STOP = signal.SIGSTOP


class Crossed(msgspec.Struct, frozen=True):
    """A failpoint and the process that crossed it."""

    pid: int
    name: str


class Control(MappedFile):
    """The control file of a scene, used by one test at a time.

    Its processes find it by $PT_POINTS when they load the core.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, _BYTES)

    def arm(self, name: str, action: Action, pid: int = ANYBODY, times: int = 1) -> None:
        """Arms a failpoint for the process with this pid, when it crosses it for the times-th time from now on."""
        self.disarm()
        _WANTED.pack_into(self.memory, 0, _QUIET, pid, times, action.value, 0, name.encode())
        _STATE.pack_into(self.memory, 0, _ARMED)

    def disarm(self) -> None:
        """Disarms all failpoints."""
        _STATE.pack_into(self.memory, 0, _QUIET)

    @property
    def fired(self) -> int:
        """The pid of the process that was killed or stopped; 0 if there is none yet."""
        state, *_ = _WANTED.unpack_from(self.memory, 0)
        return int(_STATE.unpack_from(self.memory, _FIRED_AT)[0]) if state == _FIRED else 0

    def wait_fired(self, seconds: float) -> int:
        """Waits until a process was killed or stopped, and returns its pid; 0 after the timeout."""
        ends = time.monotonic() + seconds
        while not (pid := self.fired) and time.monotonic() < ends:
            time.sleep(0.001)
        return pid

    def forget(self) -> None:
        """Resets the counts of crossed failpoints. A crossing at this very moment may be lost."""
        self.memory[_WANTED.size :] = bytes(_BYTES - _WANTED.size)

    def crossed(self) -> Counter[Crossed]:
        """Returns how often each process crossed each failpoint since the last reset."""
        found: Counter[Crossed] = Counter()
        for pid, times, named, name in _RECORD.iter_unpack(self.memory[_WANTED.size :]):
            if named:
                found[Crossed(pid, name.rstrip(b"\0").decode())] += times
        return found
