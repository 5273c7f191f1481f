"""Operations that end and start disks: workers that die, daemons that start and stop with a disk."""

from __future__ import annotations

import os
import shutil
import signal
from typing import Final

from kill_points.colliding_pages import PAGES
from kill_points.daemon_lifecycles import served_and_attached
from kill_points.disk_operations import SMALL, WithDisk
from kill_points.operation import Role
from running_daemon import eventually


class LoseWorker(WithDisk):
    """The disk worker dies while it reads, and another one starts."""

    roles = (Role.DAEMON,)

    def prepare(self) -> None:
        self.scene.renew()  # a daemon that has lost a worker before waits longer before it starts the next
        super().prepare()
        assert self.engine is not None
        os.kill(self.scene.worker(), signal.SIGSTOP)
        self.worker = self.scene.worker()
        self.engine.send_command("prefetch", self.pages)
        assert eventually(lambda: not self.scene.quiet())

    def act(self) -> None:
        os.kill(self.worker, signal.SIGKILL)

    def done(self) -> bool:
        return super().done() and self.scene.worker() not in (0, self.worker) and self.scene.disk_is_open()


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
        self.put_on_disk(PAGES)
        super().prepare()
        self.scene.dropping()

    def until_on_disk(self, count: int) -> None:
        del count
        self.scene.rest()
        assert eventually(lambda: self.scene.header().disk_pages >= self.scene.header().pages)

    def act(self) -> None:
        self.scene.daemon.launch("--disk-size", SMALL)


class StopWithDisk(WithDisk):
    """A daemon stops on SIGTERM and first writes the pages that are in memory only."""

    rule = "evict"
    before = 0
    ends_daemon = True
    keeps_pages = False

    def act(self) -> None:
        self.scene.dropping()
        self.scene.daemon.signal(signal.SIGTERM)

    def done(self) -> bool:
        return not self.scene.daemon.lives


DISK_LIVES: Final = (
    StartWithDisk,
    StartWithNewDisk,
    StartWithSmallerDisk,
    StopWithDisk,
    LoseWorker,
)
