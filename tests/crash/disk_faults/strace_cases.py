"""Runs cases with strace instead of the gate: fewer and slower, but the kernel itself makes the calls fail."""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

from disk_faults import verdicts
from disk_faults.strace import injected
from kill_points.disk_operations import WriteBehind
from kill_points.scene import Scene
from running_daemon import START_S, eventually

_OVER_S: Final = 40.0
_DEAD_S: Final = 10.0  # until the daemon has a new worker; by then the operation is over and makes no more calls


class Injection(msgspec.Struct, frozen=True):
    """A fault in strace's syntax."""

    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.call}:{self.what}"

    @property
    def ends(self) -> bool:
        """Whether a worker that makes such a call dies of it."""
        return "signal=KILL" in self.what


class StoreAndSave(WriteBehind):
    """Pages are stored and written, and an administrator has the disk synced."""

    def act(self) -> None:
        super().act()
        assert self.engine is not None
        self.engine.send_command("save")


def deaths(scene: Scene, call: str) -> int:
    """Kills a thread's process at its first such call, its second, and so on; returns the number of such calls."""
    return next(at for at in itertools.count() if not run_case(scene, death(call, at + 1)))


def death(call: str, number: int) -> Injection:
    """Returns the injection that kills the process at the number-th call of a thread, counted from 1."""
    return Injection(call, f"signal=KILL:when={number}")


def run_case(scene: Scene, injection: Injection) -> bool:
    """Runs a case and returns whether the worker died of the fault. Raises AssertionError if a promise is broken."""
    scene.begin()
    operation = StoreAndSave(scene)
    operation.prepare()
    begun = verdicts.begun(scene)
    with injected(begun.worker, injection.call, injection.what):
        operation.act()
        verdicts.check_engines(scene, operation)
        verdicts.check_load_timeout(scene, operation)
        assert eventually(operation.engines_done, _OVER_S), scene.daemon.log.read_text()
        died = injection.ends and eventually(lambda: scene.worker() != begun.worker, _DEAD_S)
    if scene.worker() != begun.worker:
        scene.renew()
    scene.until_disk_is_open()
    verdicts.check_index(scene)
    assert eventually(lambda: scene.verify(operation.pages, START_S).loaded == len(operation.pages), START_S)
    verdicts.settle(scene, begun)
    scene.empty()
    verdicts.recover(scene)
    return died
