"""Runs one case: a call of the disk worker goes wrong during an operation, then the promises are checked."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from disk_faults import verdicts
from disk_faults.gate import Action, Fault, Gate, RecordedCall
from kill_points.operation import Operation, Role
from kill_points.scene import Scene
from running_daemon import START_S, eventually

_OVER_S: Final = 30.0
_STRIKES_S: Final = 15.0
_QUIET_S: Final = 0.07
"""A little longer than the interval of the daemon's periodic checks."""
STOP_S: Final = 1
"""The time that a stop may take to write unwritten pages; ending the worker may take as long again, and a little more.
"""
_ENDS: Final = frozenset({Action.DIE, Action.TEAR})


class FaultResult(msgspec.Struct, frozen=True):
    """The result of a case.

    Attributes:
        times: How many calls went wrong.
        reborn: Whether another worker took over.
    """

    times: int
    reborn: bool = False


def calls_of(scene: Scene, gate: Gate, kind: type[Operation]) -> list[RecordedCall]:
    """Returns the system calls of the worker in an operation without faults, in order."""
    operation = _begin(scene, kind)
    begun = verdicts.begun(scene)
    gate.forget()
    operation.act()
    assert eventually(operation.done, _OVER_S), f"{kind.__name__} did not end: {scene.daemon.log.read_text()}"
    time.sleep(_QUIET_S)
    noted = gate.noted()
    _await_service(scene, operation)
    verdicts.settle(scene, begun)
    return noted


def run(scene: Scene, gate: Gate, kind: type[Operation], fault: Fault) -> FaultResult:
    """Runs an operation with a fault and returns the result. Raises AssertionError if a promise is broken."""
    operation = _begin(scene, kind)
    begun = verdicts.begun(scene)
    gate.arm(fault)
    try:
        operation.act()
        if _strikes(gate, operation):
            _check_during_fault(scene, operation, fault)
    finally:
        times = gate.struck
        gate.open()
    _await_recovery(scene, operation, fault)
    verdicts.check_index(scene)
    assert eventually(operation.verify, START_S), f"{scene.header()} {scene.daemon.log.read_text()}"
    verdicts.settle(scene, begun)
    scene.empty()
    verdicts.recover(scene)
    return FaultResult(times, scene.worker() != begun.worker)


def _begin(scene: Scene, kind: type[Operation]) -> Operation:
    scene.begin()
    operation = kind(scene)
    operation.prepare()
    return operation


def _strikes(gate: Gate, operation: Operation) -> bool:
    """Returns whether the fault happens before the operation is over."""
    ends = time.monotonic() + _STRIKES_S
    while not gate.struck and time.monotonic() < ends and not operation.done():
        time.sleep(0.002)
    return eventually(lambda: gate.struck > 0, _QUIET_S)


def _check_during_fault(scene: Scene, operation: Operation, fault: Fault) -> None:
    """Checks the engines while the disk is in trouble; a lasting fault continues until the gate is opened."""
    if operation.ends_daemon:
        assert eventually(operation.done, 2 * STOP_S + _OVER_S), "the stop of the daemon waits for the disk"
        return
    assert eventually(lambda: _is_served(scene, operation), START_S), scene.daemon.log.read_text()
    verdicts.check_engines(scene, operation)
    if fault.action is Action.HANG:
        verdicts.check_load_timeout(scene, operation)
        verdicts.check_engines(scene, operation)
    verdicts.check_index(scene)


def _await_recovery(scene: Scene, operation: Operation, fault: Fault) -> None:
    """Waits until the disk is open again.

    If the worker died, the daemon is replaced: the next one starts a worker at once, this one would delay it.
    """
    if fault.action in _ENDS and not operation.ends_daemon and Role.TIER not in operation.starts:
        scene.renew()
    _await_service(scene, operation)
    for engine in operation.engines():
        engine.result()


def _await_service(scene: Scene, operation: Operation) -> None:
    """Waits until the daemon serves, the observing client is attached and the disk is open."""
    if operation.ends_daemon:
        assert eventually(operation.done, _OVER_S), "the stop of the daemon does not end"
        scene.daemon.start()
    assert eventually(lambda: _is_served(scene, operation), START_S), scene.daemon.log.read_text()
    scene.until_disk_is_open()


def _is_served(scene: Scene, operation: Operation) -> bool:
    return (not operation.starts or scene.served()) and scene.client.attached
