"""Runs one case: a process is killed or stopped at a failpoint of an operation, then the promises are checked."""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from kill_points.colliding_pages import PAGES
from kill_points.control import Action
from kill_points.operation import Operation, Role
from kill_points.scene import SHORT_S, SLACK_S, Scene, timed
from pagetier.client import Outcome
from running_daemon import START_S, eventually

_FIRED_S: Final = 8.0
_BACK_S: Final = 1.0
_DONE_S: Final = 30.0
_QUIET_S: Final = 0.07
"""A little longer than the interval of the daemon's periodic checks."""


class Case(msgspec.Struct, frozen=True):
    """A process in this role crosses the failpoint during an operation, and is killed or stopped there."""

    role: Role
    point: str
    action: Action

    def __str__(self) -> str:
        return f"{self.role.value} {'killed' if self.action is Action.KILL else 'stopped'} at {self.point}"


class Ended(msgspec.Struct, frozen=True):
    """The result of a case.

    Attributes:
        crossed: Whether the failpoint was crossed.
        back_s: The seconds until the memory of the dead process was in use again.
    """

    crossed: bool
    back_s: float = 0.0


def crossings(scene: Scene, kind: type[Operation]) -> dict[Role, set[str]]:
    """Returns the failpoints that an operation crosses in each role when no process dies."""
    operation = _begin(scene, kind)
    before = {role: operation.pid(role) for role in kind.roles if role not in kind.starts}
    scene.control.forget()
    operation.act()
    assert eventually(operation.done, _DONE_S), f"{kind.__name__} did not end: {scene.daemon.log.read_text()}"
    time.sleep(_QUIET_S)
    of_pid = {pid: role for role, pid in before.items() if pid}
    if Role.ENGINE in kind.starts:
        of_pid[operation.pids_of_engines()[0]] = Role.ENGINE
    if Role.DAEMON in kind.starts:
        of_pid[scene.daemon.pid] = Role.DAEMON
    others = set(operation.pids_of_engines())
    found: dict[Role, set[str]] = defaultdict(set)
    for one in scene.control.crossed():
        role = of_pid.get(one.pid, Role.TIER if one.pid not in others else None)
        if role in kind.roles:
            found[role].add(one.name)
    _end(scene, operation)
    return dict(found)


def run(scene: Scene, kind: type[Operation], case: Case) -> Ended:
    """Runs the case and returns its result. Raises AssertionError if a promise is broken."""
    operation = _begin(scene, kind)
    scene.control.arm(case.point, case.action, operation.pid(case.role))
    operation.act()
    pid = _fired(scene, operation)
    if not pid:
        scene.control.disarm()
        if not operation.ends_daemon:
            assert operation.verify(), scene.header()
        _end(scene, operation)
        return Ended(crossed=False)
    died = time.monotonic()
    (_kill if case.action is Action.KILL else _stop)(scene, operation, case.role, pid)
    if case.role is not Role.ENGINE or operation.ends_daemon:
        died = time.monotonic()  # its memory could not be released before the others had noticed
    assert eventually(lambda: _is_released(scene, operation, pid), _BACK_S), (
        f"memory or a slot was not released: {_holdings(scene)}"
    )
    back = time.monotonic() - died
    _end(scene, operation)
    return Ended(crossed=True, back_s=back)


def _begin(scene: Scene, kind: type[Operation]) -> Operation:
    scene.begin()
    operation = kind(scene)
    operation.prepare()
    return operation


def _fired(scene: Scene, operation: Operation) -> int:
    """Returns the pid of the process that crossed the failpoint; 0 if the operation ended without crossing it."""
    ends = time.monotonic() + _FIRED_S
    while not (pid := scene.control.fired) and time.monotonic() < ends:
        if operation.done():
            return scene.control.wait_fired(_QUIET_S)
        time.sleep(0.002)
    return pid


# ---- a process is killed


def _kill(scene: Scene, operation: Operation, role: Role, pid: int) -> None:
    match role:
        case Role.ENGINE:
            assert operation.engine is not None and operation.engine.process.pid == pid
            operation.engine.process.wait(START_S)
            operation.engine = None
            if operation.ends_daemon:
                assert eventually(operation.done, _DONE_S)
                scene.daemon.start()
        case Role.DAEMON:
            assert scene.daemon.pid == pid and scene.daemon.process is not None
            scene.daemon.process.wait(START_S)
            _check_without_daemon(scene, operation)
            scene.daemon.start()
        case Role.TIER:
            _after_worker(scene, operation)
    _check_recovery(scene, operation)


def _after_worker(scene: Scene, operation: Operation) -> None:
    """Checks the clients without the worker, then replaces the daemon, which would delay each further worker."""
    if operation.ends_daemon:
        assert eventually(operation.done, _DONE_S)
        scene.daemon.start()
        return
    assert eventually(lambda: scene.client.attached, START_S)
    _check_others(scene, operation)
    scene.renew()


def _check_without_daemon(scene: Scene, operation: Operation) -> None:
    """Checks the engines without a daemon: matches and loads work, stores are rejected within the timeout."""
    if operation.keeps_pages:
        verified, seconds = timed(lambda: scene.verify(operation.known))
        assert verified.loaded == len(operation.known), "a page was not found without a daemon"
        assert seconds < SLACK_S, f"a load took {seconds:.3f} s without a daemon"
    stored, seconds = timed(lambda: scene.store(scene.numbers(1), SHORT_S))
    assert stored == 0, "a store succeeded without a daemon"
    assert seconds < SHORT_S + SLACK_S, f"a store took {seconds:.3f} s without a daemon"


def _check_others(scene: Scene, operation: Operation) -> None:
    """Checks that stores and loads of other engines work while the daemon runs."""
    if operation.keeps_pages:
        assert scene.verify(operation.known).loaded == len(operation.known), "a stored page was not found"
    fresh = scene.numbers(2)
    stored, seconds = timed(lambda: scene.store(fresh))
    assert stored == len(fresh) and scene.verify(fresh).loaded == len(fresh), "other engines cannot store"
    assert seconds < SLACK_S, f"a store took {seconds:.3f} s"


def _check_recovery(scene: Scene, operation: Operation) -> None:
    """Checks the cache after a death or a stop; waits until the client has noticed the new daemon or dead link."""
    assert eventually(lambda: scene.client.attached, START_S), scene.daemon.log.read_text()
    assert eventually(lambda: scene.store(scene.numbers(1)) == 1, START_S), "stores do not work again"
    _check_others(scene, operation)
    _check_index(scene)
    for engine in operation.engines():
        engine.result()
    scene.until_disk_is_open()
    assert operation.verify(), f"{scene.header()} {scene.daemon.log.read_text()}"


# ---- a process is stopped


def _stop(scene: Scene, operation: Operation, role: Role, pid: int) -> None:
    assert eventually(lambda: _state_of(pid) == "T"), "the process was not stopped"
    if role is Role.DAEMON:
        _check_without_daemon(scene, operation)
    elif not operation.ends_daemon:
        _check_others(scene, operation)
    if role is Role.ENGINE and not operation.ends_daemon:
        assert scene.engine().do("store", scene.numbers(2)) == [Outcome.STORED] * 2, "no engine can attach"
    if role is Role.TIER:
        _, seconds = timed(lambda: scene.verify(operation.on_disk(), SHORT_S))
        assert seconds < SHORT_S + SLACK_S, f"a load took {seconds:.3f} s while the disk worker was stopped"
    _resume(pid)
    assert eventually(operation.done, _DONE_S), f"the operation did not continue: {scene.daemon.log.read_text()}"
    if operation.ends_daemon and not scene.daemon.lives:
        scene.daemon.start()
    _check_recovery(scene, operation)


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _resume(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


# ---- the end of a case


def _is_released(scene: Scene, operation: Operation, pid: int) -> bool:
    """Returns whether no pin, reservation or slot belongs to a dead process, and no pin to a finished one."""
    living = {engine.process.pid for engine in operation.engines()}
    attached = {slot.pid for slot in scene.daemon.observer().attachments_with_pins()}
    gone = pid in living or pid in (scene.daemon.pid, scene.worker()) or pid not in attached
    return gone and scene.quiet() and not scene.pins(but=living)


def _holdings(scene: Scene) -> str:
    return f"{scene.daemon.observer().attachments_with_pins()} {scene.header()}"


def _end(scene: Scene, operation: Operation) -> None:
    """Judges the case, and proves that all frames can be used again."""
    scene.dismiss()
    if not scene.daemon.lives:
        scene.daemon.start()
    assert eventually(lambda: scene.client.attached, START_S)
    assert eventually(lambda: scene.quiet() and not scene.pins(), START_S), _holdings(scene)
    violations = scene.violations(operation.lost())
    assert violations == [], violations
    _check_index(scene)
    full = scene.numbers(PAGES)
    # A page that is being written to disk cannot be evicted, and the disk worker has the lowest priority.
    seconds = START_S if scene.has_disk else _BACK_S
    assert eventually(lambda: scene.store(full) == PAGES, seconds), f"not all frames can be used: {_holdings(scene)}"
    _check_index(scene)


def _check_index(scene: Scene) -> None:
    findings = scene.daemon.findings()
    assert findings == [], findings
