"""Checks the promises during and after a case, whatever was injected."""

from __future__ import annotations

from typing import Final

from eventually import eventually
from injection.operation import Operation
from injection.scene import InjectionScene
from pagetier.shm._core import IndexHeader

SHORT_S: Final = 0.1
QUIET_S: Final = 0.07
"""A little longer than the interval of the daemon's periodic checks."""


def check_engines(scene: InjectionScene, operation: Operation) -> None:
    """Checks that pages in memory are found and new pages are stored while the daemon runs and others hang for ever."""
    if operation.keeps_pages:
        check_known_pages(scene, operation)
    fresh = scene.numbers(2)
    assert scene.store(fresh) == len(fresh), f"a store was rejected: {scene.header()}"
    assert scene.verify(fresh).loaded == len(fresh), "a page that was just stored was not found"


def check_known_pages(scene: InjectionScene, operation: Operation) -> None:
    """Checks that the pages in memory are found without any wait, with or without a daemon."""
    assert scene.verify(operation.known).loaded == len(operation.known), "a page in memory was not found"


def check_index(scene: InjectionScene) -> None:
    """Checks that the daemon finds no inconsistency in the index."""
    found = scene.daemon.findings()
    assert found == [], found


def strikes(scene: InjectionScene, operation: Operation, wait: float = QUIET_S) -> bool:
    """Returns whether the injection strikes, at most `wait` seconds after the operation."""
    eventually(lambda: scene.injector.struck > 0 or operation.done())
    return eventually(lambda: scene.injector.struck > 0, wait)


def await_end(scene: InjectionScene, operation: Operation) -> None:
    """Waits for the end of an operation that ends the daemon, and starts the next daemon."""
    assert eventually(operation.done), f"the stop of the daemon does not end: {scene.daemon.log.read_text()}"
    scene.daemon.start()


def left_memory(now: IndexHeader, before: IndexHeader) -> int:
    """Returns how many pages left the cache by the daemon's counters, if a page that is evicted is not on disk."""
    return (
        now.evicted - before.evicted + now.disk_evicted - before.disk_evicted + now.disk_damaged - before.disk_damaged
    )


def left_disk(now: IndexHeader, before: IndexHeader) -> int:
    """Returns how many pages left both tiers by the daemon's counters, if the disk was open all the time."""
    lost = now.disk_lost - before.disk_lost + now.disk_skipped - before.disk_skipped
    lost += now.disk_failed - before.disk_failed
    return lost + now.disk_evicted - before.disk_evicted + now.disk_damaged - before.disk_damaged
