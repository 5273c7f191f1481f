"""Who dies where: what a test writes for crossing.c to read, and reads of what was crossed."""

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
    """What a point does to who crosses it."""

    KILL = signal.SIGKILL
    STOP = signal.SIGSTOP


class Crossed(msgspec.Struct, frozen=True):
    """A point and the process that crossed it."""

    pid: int
    name: str


class Control(MappedFile):
    """One scene's: a file that its processes find by $PT_POINTS when they load the core. Of one test at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, _BYTES)

    def arm(self, name: str, action: Action, pid: int = ANYBODY, times: int = 1) -> None:
        """Whoever of this pid crosses this point for the times-th time from now on is killed or stopped there."""
        self.disarm()
        _WANTED.pack_into(self.memory, 0, _QUIET, pid, times, action.value, 0, name.encode())
        _STATE.pack_into(self.memory, 0, _ARMED)

    def disarm(self) -> None:
        """Nobody dies any more."""
        _STATE.pack_into(self.memory, 0, _QUIET)

    @property
    def fired(self) -> int:
        """The pid of who died or was stopped; 0 if nobody was yet."""
        state, *_ = _WANTED.unpack_from(self.memory, 0)
        return int(_STATE.unpack_from(self.memory, _FIRED_AT)[0]) if state == _FIRED else 0

    def wait_fired(self, seconds: float) -> int:
        """The same, awaited for so long."""
        ends = time.monotonic() + seconds
        while not (pid := self.fired) and time.monotonic() < ends:
            time.sleep(0.001)
        return pid

    def forget(self) -> None:
        """Begins to count anew. What is crossed in this very moment may be lost."""
        self.memory[_WANTED.size :] = bytes(_BYTES - _WANTED.size)

    def crossed(self) -> Counter[Crossed]:
        """How often who has crossed what since then."""
        found: Counter[Crossed] = Counter()
        for pid, times, named, name in _RECORD.iter_unpack(self.memory[_WANTED.size :]):
            if named:
                found[Crossed(pid, name.rstrip(b"\0").decode())] += times
        return found
