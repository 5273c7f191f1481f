"""Daemons that come and go."""

from __future__ import annotations

import signal
from typing import Final

from kill_points.control import Action
from kill_points.operation import Operation, Role
from kill_points.scene import Scene


def served_and_attached(scene: Scene) -> bool:
    """Whether the daemon that was started is there, for who looks on."""
    return scene.served() and scene.client.attached


class Start(Operation):
    """A daemon with nothing to adopt."""

    roles = (Role.DAEMON,)
    starts = (Role.DAEMON,)
    keeps = False

    def prepare(self) -> None:
        super().prepare()
        self.scene.dropping()
        assert self.scene.daemon.stop() == 0

    def act(self) -> None:
        self.scene.daemon.launch()

    def done(self) -> bool:
        return served_and_attached(self.scene)


class StartOver(Start):
    """A daemon that finds the segments of one that died while it gave them back."""

    def prepare(self) -> None:
        Operation.prepare(self)
        self.scene.dropping()
        self.scene.control.arm("segments.closed", Action.KILL, self.scene.daemon.pid)
        self.scene.daemon.stop()


class Adopt(Start):
    """A daemon takes over: pages that are whole, held, being written, given up, and of which the dead stored a part."""

    keeps = True

    def prepare(self) -> None:
        Operation.prepare(self)
        writes, gave_up, finished = self.scene.engine(), self.scene.engine(), self.scene.engine()
        self.others = [writes]
        writes.do("open", self.scene.numbers(2))
        gave_up.do("open", self.scene.numbers(2), 0, 2)
        finished.do("store", self.scene.numbers(2), 0, 2)
        gave_up.process.kill()
        finished.process.kill()
        assert self.engine is not None
        self.engine.do("hold", self.known)
        self.scene.daemon.kill()

    def act(self) -> None:
        super().act()
        self.others[0].order("publish")

    def done(self) -> bool:
        return super().done() and self.engines_done() and self.scene.quiet()


class Stop(Operation):
    """SIGTERM: the memory is given back."""

    goes = True
    keeps = False

    def act(self) -> None:
        self.scene.dropping()
        self.scene.daemon.signal(signal.SIGTERM)

    def done(self) -> bool:
        return not self.scene.daemon.lives


class HandOver(Stop):
    """SIGUSR1: the pages stay for the next daemon."""

    roles = (Role.DAEMON,)
    keeps = True

    def act(self) -> None:
        self.scene.daemon.signal(signal.SIGUSR1)


LIVES: Final = (
    Start,
    StartOver,
    Adopt,
    Stop,
    HandOver,
)
