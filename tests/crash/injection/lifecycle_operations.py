"""Operations that start and end daemons and disk workers."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Final

from disk_daemon import IN_FILES
from eventually import eventually
from injection.colliding_pages import PAGES
from injection.disk_operations import SMALL, WithDisk
from injection.injector import POINTS, Action, Case, Role
from injection.operation import Operation
from injection.scene import InjectionScene

_ROOM: Final = 8
"""Pages that are not stored: all have one home bucket, and so the dictionary has room for 56, on disk or not."""


def served_and_attached(scene: InjectionScene) -> bool:
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
        self.scene.injector.arm(Case(Action.DIE, POINTS, "segments.closed"), self.scene.daemon.pid)
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
        self.first().do("pin", self.known)
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


class HandOver(Stop):
    """A daemon stops on SIGUSR1 and leaves its pages to the next daemon."""

    roles = (Role.DAEMON,)
    keeps_pages = True

    def act(self) -> None:
        self.scene.daemon.signal(signal.SIGUSR1)


class StartWithDisk(WithDisk):
    """The next daemon starts, and its worker loads the disk's inventory into the index."""

    starts = (Role.DAEMON, Role.TIER)

    def prepare(self) -> None:
        super().prepare()
        self.scene.daemon.kill()

    def act(self) -> None:
        self.scene.daemon.launch()

    def done(self) -> bool:
        return served_and_attached(self.scene) and self.scene.disk_is_open()


class StartWithNewDisk(StartWithDisk):
    """A daemon starts with an empty disk folder."""

    roles = (Role.TIER,)
    pages_stay = False

    def prepare(self) -> None:
        super().prepare()
        self.scene.dropping()
        shutil.rmtree(self.scene.folder / "disk")


class StartWithSmallerDisk(StartWithDisk):
    """A daemon starts with a smaller disk than before: pages are evicted from disk, and the files are rewritten."""

    roles = (Role.TIER,)
    pages_stay = False

    def prepare(self) -> None:
        self.scene.renew()
        self.put_on_disk(PAGES)
        self.put_on_disk(PAGES - _ROOM)
        super().prepare()
        self.scene.dropping()

    def until_on_disk(self, count: int) -> None:
        del count
        self.scene.rest()
        assert eventually(lambda: self.scene.header().disk_pages >= self.scene.header().pages)

    def act(self) -> None:
        self.scene.daemon.launch("--disk-size", SMALL)


class StartWithSmallerFiles(StartWithSmallerDisk):
    """The same in the files store: pages are moved, and the files are cut."""

    @classmethod
    def flags_in(cls, folder: Path) -> tuple[str, ...]:
        return *super().flags_in(folder), *IN_FILES


class StopWithDisk(WithDisk):
    """A daemon stops on SIGTERM and first writes the pages that are in memory only."""

    rule = "evict"
    before = 0
    ends_daemon = True
    keeps_pages = False

    def act(self) -> None:
        self.scene.dropping()
        self.scene.daemon.signal(signal.SIGTERM)


class LoseWorker(WithDisk):
    """The disk worker dies while it reads, and another one starts."""

    roles = (Role.DAEMON,)

    def prepare(self) -> None:
        self.scene.renew()  # a daemon that has lost a worker before waits longer before it starts the next
        super().prepare()
        os.kill(self.scene.worker(), signal.SIGSTOP)
        self.worker = self.scene.worker()
        self.send("prefetch", self.pages)
        assert eventually(lambda: not self.scene.quiet())

    def act(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def done(self) -> bool:
        return super().done() and self.scene.worker() not in (0, self.worker) and self.scene.disk_is_open()
