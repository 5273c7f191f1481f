"""Operations that start and stop daemons."""

from __future__ import annotations

import signal
from typing import Final

from kill_points.control import Action
from kill_points.operation import Operation, Role
from kill_points.scene import Scene


def served_and_attached(scene: Scene) -> bool:
    """Returns whether the daemon that was started serves and has the observing client attached."""
    return scene.served() and scene.client.attached


class Start(Operation):
    """A daemon starts with nothing to adopt."""

    roles = (Role.DAEMON,)
    starts = (Role.DAEMON,)
    keeps_pages = False

    def prepare(self) -> None:
        super().prepare()
        self.scene.dropping()
        assert self.scene.daemon.stop() == 0

    def act(self) -> None:
        self.scene.daemon.launch()

    def done(self) -> bool:
        return served_and_attached(self.scene)


class StartOver(Start):
    """A daemon starts and finds the segments of one that died while it removed them."""

    def prepare(self) -> None:
        Operation.prepare(self)
        self.scene.dropping()
        self.scene.control.arm("segments.closed", Action.KILL, self.scene.daemon.pid)
        self.scene.daemon.stop()


class Adopt(Start):
    """A daemon adopts pages that are complete, pinned, being written, abandoned, or partly written by the dead."""

    keeps_pages = True

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
        self.engine.do("pin", self.known)
        self.scene.daemon.kill()

    def act(self) -> None:
        super().act()
        self.others[0].send_command("publish")

    def done(self) -> bool:
        return super().done() and self.engines_done() and self.scene.quiet()


class Stop(Operation):
    """A daemon stops on SIGTERM and releases its memory."""

    ends_daemon = True
    keeps_pages = False

    def act(self) -> None:
        self.scene.dropping()
        self.scene.daemon.signal(signal.SIGTERM)

    def done(self) -> bool:
        return not self.scene.daemon.lives


class HandOver(Stop):
    """A daemon stops on SIGUSR1 and leaves its pages to the next daemon."""

    roles = (Role.DAEMON,)
    keeps_pages = True

    def act(self) -> None:
        self.scene.daemon.signal(signal.SIGUSR1)


LIVES: Final = (
    Start,
    StartOver,
    Adopt,
    Stop,
    HandOver,
)
