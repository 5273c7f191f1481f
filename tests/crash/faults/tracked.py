"""Cases in which strace has the kernel do it: fewer, and slower, but no library is in between."""

from __future__ import annotations

from typing import Final

import msgspec

from running import START_S, eventually
from sweep.disk_operations import WriteBehind
from sweep.scene import Scene

from . import judging
from .tracing import injected

_OVER_S: Final = 40.0


class Injection(msgspec.Struct, frozen=True):
    """What strace is to do with a call, in its own words."""

    call: str
    what: str

    def __str__(self) -> str:
        return f"{self.call}:{self.what}"

    @property
    def ends(self) -> bool:
        """Whether the worker does not survive it."""
        return "signal=KILL" in self.what


class StoreAndSave(WriteBehind):
    """Pages are stored and written, and an administrator has the disk synced."""

    def act(self) -> None:
        super().act()
        assert self.engine is not None
        self.engine.order("save")


def meet(scene: Scene, injection: Injection) -> None:
    """Raises AssertionError where a promise is broken."""
    scene.begin()
    operation = StoreAndSave(scene)
    operation.prepare()
    begun = judging.begun(scene)
    with injected(begun.worker, injection.call, injection.what):
        operation.act()
        judging.goes_on(scene, operation)
        judging.answers_in_time(scene, operation)
        assert eventually(operation.engines_done, _OVER_S), scene.daemon.log.read_text()
        assert not injection.ends or eventually(lambda: scene.worker() != begun.worker, _OVER_S), "it lives on"
    if scene.worker() != begun.worker:
        scene.renew()
    scene.until_disk_is_open()
    judging.is_sound(scene)
    assert eventually(lambda: scene.look(operation.pages, START_S).loaded == len(operation.pages), START_S)
    judging.settle(scene, begun)
    scene.empty()
    judging.comes_to_work(scene)


def every(call: str, what: str, up_to: int) -> list[Injection]:
    """It happens at the first, at the second, and so on."""
    return [Injection(call, f"{what}:when={number}") for number in range(1, up_to + 1)]
