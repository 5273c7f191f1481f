"""Judges the cases in which a process is killed or stopped at a failpoint of an operation."""

from __future__ import annotations

import os
import signal

from eventually import PATIENCE_S, eventually
from injection.colliding_pages import PAGES
from injection.injector import Action, Case, Role
from injection.operation import Operation
from injection.scene import InjectionScene
from injection.verdicts import (
    QUIET_S,
    SHORT_S,
    await_end,
    check_engines,
    check_index,
    check_known_pages,
    left_memory,
    strikes,
)
from oracle.checker import Losses
from pagetier.client import Outcome
from process_states import state_of


def run_process_case(scene: InjectionScene, kind: type[Operation], case: Case, wait: float = QUIET_S) -> bool:
    """Returns whether the process met the failpoint, at most `wait` seconds after the operation was over.

    Raises AssertionError if a promise is broken.
    """
    operation = kind.begun(scene)
    scene.injector.arm(case, operation.pid(case.role))
    operation.act()
    struck = strikes(scene, operation, wait)
    if not struck:
        scene.injector.disarm()
        struck = scene.injector.struck > 0  # it may have struck at the last moment
    if struck:
        pid = scene.injector.pid
        (_after_kill if case.action is Action.DIE else _after_stop)(scene, operation, case.role, pid)
        assert scene.turns.sees_within_a_second(lambda: _is_released(scene, operation, pid)), (
            f"memory or a slot was not released: {scene.state()}"
        )
    else:
        assert operation.ends_daemon or operation.verify(), scene.header()
    end_process_case(scene, operation)
    return struck


def _after_kill(scene: InjectionScene, operation: Operation, role: Role, pid: int) -> None:
    match role:
        case Role.ENGINE:
            assert operation.first().process.pid == pid
            operation.first().process.wait(PATIENCE_S)
            operation.engine = None
        case Role.DAEMON:
            assert scene.daemon.pid == pid
            scene.daemon.wait()
            _check_without_daemon(scene, operation)
            scene.daemon.start()
        case Role.TIER if not operation.ends_daemon:
            scene.until_attached()
            check_engines(scene, operation)
            operation.load_away(SHORT_S)
            scene.renew()  # a daemon delays each further worker
    if operation.ends_daemon and role is not Role.DAEMON:
        await_end(scene, operation)
    _check_recovery(scene, operation)


def _after_stop(scene: InjectionScene, operation: Operation, role: Role, pid: int) -> None:
    assert eventually(lambda: state_of(pid) == "T"), "the process was not stopped"
    if role is Role.DAEMON:
        _check_without_daemon(scene, operation)
    elif not operation.ends_daemon:
        scene.until_attached()  # the operation may be the start of a daemon
        check_engines(scene, operation)
    if role is Role.ENGINE and not operation.ends_daemon:
        assert scene.engine().do("store", scene.numbers(2)) == [Outcome.STORED] * 2, "no engine can attach"
    if role is Role.TIER:
        operation.load_away(SHORT_S)
    os.kill(pid, signal.SIGCONT)
    assert eventually(operation.done), f"the operation did not continue: {scene.daemon.log.read_text()}"
    if operation.ends_daemon and not scene.daemon.lives:
        scene.daemon.start()
    _check_recovery(scene, operation)


def _check_without_daemon(scene: InjectionScene, operation: Operation) -> None:
    """Checks the engines without a daemon: matches and loads work, stores are rejected."""
    if operation.keeps_pages:
        check_known_pages(scene, operation)
    assert scene.store(scene.numbers(1), SHORT_S) == 0, "a store succeeded without a daemon"


def _check_recovery(scene: InjectionScene, operation: Operation) -> None:
    """Checks the cache after a death or a stop; waits until the client has noticed the new daemon or dead link."""
    scene.until_attached()
    fresh = scene.numbers(1)
    assert eventually(lambda: scene.takes(fresh)), "stores do not work again"
    check_engines(scene, operation)
    check_index(scene)
    for engine in operation.engines():
        engine.result()
    scene.until_disk_is_open()
    assert operation.verify(), scene.state()


def _is_released(scene: InjectionScene, operation: Operation, pid: int) -> bool:
    """Returns whether no pin, reservation or slot belongs to a dead process, and no pin to a finished one."""
    living = set(operation.pids_of_engines())
    attached = {slot.pid for slot in scene.daemon.observer().attachments_with_pins()}
    gone = pid in living or pid in (scene.daemon.pid, scene.worker()) or pid not in attached
    return gone and scene.quiet() and not scene.pins(but=living)


def end_process_case(scene: InjectionScene, operation: Operation) -> None:
    """Judges the case, and proves that all frames can be used again."""
    scene.dismiss()
    scene.judge(Losses(at_most=max(0, left_memory(scene.header(), scene.before) + operation.lost())))
    check_index(scene)
    full = scene.numbers(PAGES)

    def is_back() -> bool:
        return scene.takes(full)

    # A page that is being written to disk cannot be evicted, and the disk worker has the lowest priority.
    assert eventually(is_back) if scene.has_disk else scene.turns.sees_within_a_second(is_back), scene.state()
    check_index(scene)
