"""Sweeps an operation: runs it once for each fault, and checks the promises each time."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from disk_faults.case import FaultResult, calls_of, run
from disk_faults.gate import ALL, CHANGES, WRITES, Action, Call, Fault, Gate, RecordedCall
from disk_faults.operations import flags
from disk_faults.preload import gated
from kill_points.operation import Operation
from kill_points.scene import Scene, timed
from kill_points.sweep import Stage, stage

EVERYTHING: Final = os.environ.get("SWEEP") == "all"
"""With it, every call of each operation goes wrong in all ways; otherwise some of them."""
_READS: Final = frozenset({Call.PREAD})
_ROOM: Final = WRITES | {Call.FALLOCATE, Call.MKDIR, Call.OPEN}
"""The calls that need free blocks or a new name."""
_TROUBLE: Final = (
    Fault(Action.FAIL, _ROOM, 1, errno.ENOSPC),
    Fault(Action.FAIL, ALL, 1, errno.EIO),
    Fault(Action.FAIL, WRITES, 1, errno.EIO, file="data.mdb"),
    Fault(Action.HANG, ALL),
)
"""The faults that last."""

log = logging.getLogger("faults")


class GatedStage(msgspec.Struct, frozen=True):
    """A stage whose workers have a gate before their disks."""

    stage: Stage
    gate: Gate


class Swept(msgspec.Struct, frozen=True):
    """The result of a sweep. `unstruck` lists the faults whose calls were not made this time."""

    calls: Counter[RecordedCall]
    cases: int
    struck: int
    reborn: int
    unstruck: list[str]


class Part(msgspec.Struct, frozen=True):
    """A part of a sweep, for one test: number `number` of `count`. `few` limits the number of faults; 0: no limit."""

    number: int
    count: int
    few: int

    def of(self, faults: Sequence[Fault]) -> list[Fault]:
        """Returns the faults of this part."""
        return _some(faults, self.number, self.few) if self.few else list(faults[self.number :: self.count])


@contextmanager
def gated_stage(folder: Path) -> Iterator[GatedStage]:
    """Yields a gated_stage for any number of sweeps, one after another."""
    with Gate(folder / "gate") as gate, gated(gate.path), stage(folder) as on:
        yield GatedStage(on, gate)


def sweep(on: GatedStage, kind: type[Operation], folder: Path, part: Part) -> Swept:
    """Runs all cases of the part and returns the result. Raises AssertionError for a case that breaks a promise."""
    on.gate.watch(folder / "disk")
    with Scene(on.stage.fork_client, on.stage.control, folder, flags(kind, folder)) as scene:
        calls = calls_of(scene, on.gate, kind)
        chosen = part.of(faults_at(calls))
        ended = [_run(scene, on.gate, kind, fault) for fault in chosen]
    unstruck = [f"{kind.__name__}: {fault}" for fault, one in zip(chosen, ended, strict=True) if not one.times]
    reborn = sum(one.reborn for one in ended)
    log.warning("%s: %d calls, %d faults, %d not reached", kind.__name__, len(calls), len(chosen), len(unstruck))
    return Swept(Counter(calls), len(chosen), len(chosen) - len(unstruck), reborn, unstruck)


def faults_at(calls: Sequence[RecordedCall]) -> list[Fault]:
    """Returns all faults of each of these calls, and the lasting faults."""
    number = Counter(call.call for call in calls)
    changes = sum(number[call] for call in CHANGES)
    found = [Fault(action, CHANGES, at + 1) for at in range(changes) for action in (Action.DIE, Action.TEAR)]
    found += [Fault(Action.HANG, frozenset({call}), at) for call, at in _each(number, ALL)]
    found += [Fault(Action.FAIL, frozenset({call}), at, errno.EIO) for call, at in _each(number, ALL)]
    found += [Fault(Action.FAIL, frozenset({call}), at, errno.ENOSPC) for call, at in _each(number, _ROOM)]
    found += [Fault(Action.SHORTEN, frozenset({call}), at) for call, at in _each(number, WRITES | _READS)]
    return found + [one for fault in _TROUBLE for one in _lasting(number, fault)]


def _each(number: Counter[Call], of: frozenset[Call]) -> Iterator[tuple[Call, int]]:
    return ((call, at) for call in Call if call in of for at in range(1, number[call] + 1))


def _lasting(number: Counter[Call], fault: Fault) -> list[Fault]:
    """Returns the lasting fault from the first call on, and from the middle on."""
    count = sum(number[call] for call in fault.calls)
    begins = sorted({1, (count + 1) // 2}) if count else []
    return [msgspec.structs.replace(fault, number=at, lasting=True) for at in begins]


def _some(faults: Sequence[Fault], shift: int, count: int) -> list[Fault]:
    """Returns a few faults of different kinds, without the last ones of each kind, which may not be reached."""
    kinds = [list(group) for _, group in itertools.groupby(sorted(faults, key=_when), key=_kind)]
    chosen = [(kinds[number % len(kinds)], 5 * number) for number in range(shift, shift + count)]
    return [kind[number % ((len(kind) + 1) // 2)] for kind, number in chosen]


def _kind(fault: Fault) -> tuple[int, int, bool]:
    return fault.action.value, fault.error, fault.lasting


def _when(fault: Fault) -> tuple[tuple[int, int, bool], int]:
    return _kind(fault), fault.number


def _run(scene: Scene, gate: Gate, kind: type[Operation], fault: Fault) -> FaultResult:
    try:
        struck, seconds = timed(lambda: run(scene, gate, kind, fault))
    except Exception as error:
        error.add_note(f"{kind.__name__}: {fault}")
        raise
    log.info("%s: %s: %s, %.2f s", kind.__name__, fault, struck, seconds)
    assert isinstance(struck, FaultResult)
    return struck
