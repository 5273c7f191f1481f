"""Operations with a fleet in a folder, whose worker is killed or stopped."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import ClassVar

from eventually import PATIENCE_S, eventually
from injection.colliding_pages import keys_of
from injection.injector import Role
from injection.operation import FEW, KNOWN, Operation


class WithFleet(Operation):
    """An operation with a fleet. `pages` are in the fleet only before it begins."""

    roles: ClassVar[tuple[Role, ...]] = (Role.DAEMON, Role.TIER)

    @classmethod
    def flags_in(cls, folder: Path) -> tuple[str, ...]:
        (folder / "fleet").mkdir()
        limits = "--set", "remote.ask_timeout=2s", "--set", "remote.timeout=5s"
        return "--set", f"remote.url=file://{folder}/fleet?buffers=1MiB", *limits

    def prepare(self) -> None:
        self.pages = self.scene.numbers(FEW)
        before = self.objects()
        assert self.scene.store(self.pages) == FEW
        assert eventually(lambda: self.objects() == before + FEW), self.scene.state()
        assert eventually(lambda: not self.scene.flush()), self.scene.state()
        self.scene.dropping()
        super().prepare()
        assert eventually(lambda: self.objects() == before + FEW + KNOWN), self.scene.state()
        self.before = self.objects()

    def objects(self) -> int:
        """Returns the number of pages that are in the fleet."""
        return sum(1 for _ in (self.scene.folder / "fleet").glob("pagetier/*/*"))

    def load_away(self, seconds: float) -> None:
        keys = keys_of(self.pages)
        with self.scene.client.match(keys) as match:
            self.scene.onlooker.load(match, keys, seconds, len(keys))

    def verify(self) -> bool:
        """Returns whether the fleet can be used again."""

        def loaded() -> bool:
            with self.scene.client.match(keys := keys_of(self.pages)) as match:
                return self.scene.onlooker.load(match, keys, PATIENCE_S, len(keys)) == len(keys)

        return eventually(loaded)


class WriteToFleet(WithFleet):
    """Pages are stored, and then written to the fleet."""

    def act(self) -> None:
        self.send("store", self.scene.numbers(FEW))

    def done(self) -> bool:
        return super().done() and self.objects() >= self.before + FEW


class LoadFromFleet(WithFleet):
    """A load reads pages of the fleet."""

    roles = (Role.ENGINE, Role.DAEMON, Role.TIER)

    def act(self) -> None:
        self.send("load_from_fleet", self.pages)


class StartFleet(WithFleet):
    """A worker of the fleet starts after another one was killed."""

    starts = (Role.TIER,)

    def act(self) -> None:
        self.killed = self.scene.worker()
        os.kill(self.killed, signal.SIGKILL)

    def done(self) -> bool:
        return super().done() and self.scene.worker() not in (0, self.killed) and self.scene.disk_is_open()
