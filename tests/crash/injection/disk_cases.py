"""Judges the cases in which a call of the disk worker goes wrong during an operation."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from eventually import PATIENCE_S, eventually
from injection.colliding_pages import PAGES
from injection.injector import Action, Case, Role
from injection.operation import Operation
from injection.scene import InjectionScene
from injection.verdicts import (
    SHORT_S,
    await_end,
    check_engines,
    check_index,
    left_disk,
    strikes,
)
from oracle.checker import Losses
from pagetier.shm._core import IndexHeader
from pagetier.shm.protocol import Save

STOP_S: Final = 1
"""The time that a stop may take to write unwritten pages; ending the worker may take as long again, and a little more.
"""
_FEW: Final = 2


class Begun(msgspec.Struct, frozen=True):
    """The state at the begin of a case; pages with numbers above `page` belong to it."""

    worker: int
    header: IndexHeader
    page: int


def begun(scene: InjectionScene) -> Begun:
    """Returns the current state."""
    return Begun(scene.worker(), scene.header(), scene.numbers(1)[0])


def run_disk_case(scene: InjectionScene, kind: type[Operation], case: Case) -> bool:
    """Returns whether a call went wrong. Raises AssertionError if a promise is broken."""
    operation = kind.begun(scene)
    since = begun(scene)
    scene.injector.arm(case)
    try:
        operation.act()
        if strikes(scene, operation):
            _check_during_fault(scene, operation, case)
    finally:
        struck = scene.injector.struck > 0
        scene.injector.disarm()
    if case.action in (Action.DIE, Action.TEAR) and not operation.ends_daemon and Role.TIER not in operation.starts:
        scene.renew()  # this daemon would delay the next worker
    _await_service(scene, operation)
    for engine in operation.engines():
        engine.result()
    end_disk_case(scene, operation, since)
    return struck


def end_disk_case(scene: InjectionScene, operation: Operation, since: Begun) -> None:
    """Judges the case, and proves that the disk works again."""
    check_index(scene)
    assert eventually(operation.verify), scene.state()
    settle(scene, since)
    scene.empty()
    recover(scene)


def _check_during_fault(scene: InjectionScene, operation: Operation, case: Case) -> None:
    """Checks the engines while the disk is in trouble; a lasting fault continues until the injector is disarmed."""
    if operation.ends_daemon:
        assert eventually(operation.done), "the stop of the daemon waits for the disk"
        return
    assert eventually(lambda: _is_served(scene, operation)), scene.daemon.log.read_text()
    check_engines(scene, operation)
    if case.action is Action.HANG:
        operation.load_away(SHORT_S)
        check_engines(scene, operation)
    check_index(scene)


def _await_service(scene: InjectionScene, operation: Operation) -> None:
    """Waits until the daemon serves, the observing client is attached and the disk is open."""
    if operation.ends_daemon:
        await_end(scene, operation)
    assert eventually(lambda: _is_served(scene, operation)), scene.daemon.log.read_text()
    scene.until_disk_is_open()


def _is_served(scene: InjectionScene, operation: Operation) -> bool:
    return (not operation.starts or scene.served()) and scene.client.attached


def store_and_reload(scene: InjectionScene) -> list[int]:
    """Stores pages, saves them to disk, evicts them from memory and loads them again.

    Returns:
        These pages, which were reported as on disk.
    """
    pages = _onto_disk(scene)
    assert pages, f"{scene.daemon.ask(Save(1))} {scene.daemon.log.read_text()}"
    assert eventually(lambda: _come_back(scene, pages)), (
        f"pages on disk could not be loaded: {scene.daemon.log.read_text()}"
    )
    return pages


def recover(scene: InjectionScene) -> list[int]:
    """Returns the same as store_and_reload(), for a disk that may still detect its fault and be rebuilt."""

    def come_back() -> list[int]:
        pages = _onto_disk(scene)
        if pages and _come_back(scene, pages):
            return pages
        scene.dropping()
        scene.flush("memory")  # pages that could not be saved would not fit on a small disk
        return []

    pages = eventually(come_back)
    assert pages, f"the disk tier did not recover: {scene.state()}"
    return pages


def _onto_disk(scene: InjectionScene) -> list[int]:
    """Returns new pages after they were reported as on disk; none if they could not be written."""
    pages = scene.numbers(_FEW)
    assert eventually(lambda: scene.takes(pages)), "stores do not work again"
    saved = scene.daemon.save()
    return pages if saved.synced and not saved.trouble else []


def _come_back(scene: InjectionScene, pages: list[int]) -> bool:
    assert eventually(lambda: not scene.flush("memory")), scene.header()
    return scene.verify(pages, PATIENCE_S).loaded == _FEW


def settle(scene: InjectionScene, since: Begun) -> None:
    """Ends a case: checks that nothing is pinned, all frames can be used, and each page that must be found is found."""
    scene.dismiss()
    full = scene.numbers(PAGES)
    # A page that is being written to disk cannot be evicted at this moment.
    assert eventually(lambda: scene.takes(full)), f"not all frames can be used: {scene.state()}"
    scene.until_disk_is_open()
    may_go = _may_go(scene, since)
    for number in range(since.page + 1, full[0]):
        scene.verify([number], PATIENCE_S)
    scene.judge(may_go)
    check_index(scene)
    assert "Traceback" not in scene.daemon.log.read_text(), scene.daemon.log.read_text()


def _may_go(scene: InjectionScene, since: Begun) -> Losses:
    """Returns the pages that may be lost. While no worker runs, pages on disk are missed and evicted pages are lost."""
    now = scene.header()
    gone = left_disk(now, since.header)
    if scene.worker() == since.worker:
        return Losses(at_most=max(0, gone))
    return Losses(at_most=max(0, gone + now.evicted - since.header.evicted), since=time.monotonic_ns())
