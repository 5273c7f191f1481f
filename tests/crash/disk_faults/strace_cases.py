"""Cases in which strace has the kernel do it: fewer, and slower, but no library is in between."""

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
_DEAD_S: Final = 10.0  # until the daemon has a new worker; the operation is over by then, and makes no more calls


class Injection(msgspec.Struct, frozen=True):
    """What strace is to do with a call, in its own words."""

    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.call}:{self.what}"

    @property
    def ends(self) -> bool:
        """Whether the worker does not survive it, where it comes by such a call."""
        return "signal=KILL" in self.what


class StoreAndSave(WriteBehind):
    """Pages are stored and written, and an administrator has the disk synced."""

    def act(self) -> None:
        super().act()
        assert self.engine is not None
        self.engine.order("save")


def deaths(scene: Scene, call: str) -> int:
    """At the first such call of a thread, at the second, and so on: at how many, which are all that there are."""
    return next(at for at in itertools.count() if not meet(scene, death(call, at + 1)))


def death(call: str, number: int) -> Injection:
    """At that one of the operation's calls, counted from 1."""
    return Injection(call, f"signal=KILL:when={number}")


def meet(scene: Scene, injection: Injection) -> bool:
    """Whether the worker died of it. Raises AssertionError where a promise is broken."""
    scene.begin()
    operation = StoreAndSave(scene)
    operation.prepare()
    begun = verdicts.begun(scene)
    with injected(begun.worker, injection.call, injection.what):
        operation.act()
        verdicts.goes_on(scene, operation)
        verdicts.answers_in_time(scene, operation)
        assert eventually(operation.engines_done, _OVER_S), scene.daemon.log.read_text()
        died = injection.ends and eventually(lambda: scene.worker() != begun.worker, _DEAD_S)
    if scene.worker() != begun.worker:
        scene.renew()
    scene.until_disk_is_open()
    verdicts.is_sound(scene)
    assert eventually(lambda: scene.look(operation.pages, START_S).loaded == len(operation.pages), START_S)
    verdicts.settle(scene, begun)
    scene.empty()
    verdicts.comes_to_work(scene)
    return died
