"""What an operation of a sweep is: what has to be there before it, who does it, and when it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final

from kill_points.control import ANYBODY
from kill_points.scene import Engine, Scene

KNOWN: Final = 3


class Role(Enum):
    """Who dies."""

    ENGINE = "engine"
    DAEMON = "daemon"
    TIER = "tier worker"


class Operation(ABC):
    """One run of it, in a scene of its flags.

    roles: whose points are swept. keeps: whether the pages `known`, which are stored before it, stay in memory.
    starts: whose process begins with it, so that nobody knows its pid before. goes: whether the daemon goes with it.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role.ENGINE, Role.DAEMON)
    keeps: ClassVar[bool] = True
    starts: ClassVar[tuple[Role, ...]] = ()
    goes: ClassVar[bool] = False
    has_disk: ClassVar[bool] = False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.known: list[int] = []
        self.engine: Engine | None = None
        self.others: list[Engine] = []

    @classmethod
    def flags(cls, folder: Path) -> tuple[str, ...]:
        """For the daemon; folder: for a disk."""
        del folder
        return ()

    def prepare(self) -> None:
        """Everybody lives, and nothing is cached."""
        self.known = self.scene.numbers(KNOWN)
        assert self.scene.store(self.known) == KNOWN
        self.scene.rest()
        self.engine = self.scene.engine()

    @abstractmethod
    def act(self) -> None:
        """Begins, and waits for nobody."""

    def done(self) -> bool:
        """Whether all is over."""
        return self.engines_done() and self.scene.quiet()

    def engines_done(self) -> bool:
        """Whether all orders are carried out."""
        return all(engine.answered for engine in self.engines())

    def engines(self) -> list[Engine]:
        """Those that live, if the first has not died."""
        first = [self.engine] if self.engine is not None else []
        return first + self.others

    def pids_of_engines(self) -> list[int]:
        """Of all that live."""
        return [engine.process.pid for engine in self.engines()]

    def pid(self, role: Role) -> int:
        """Of who is meant to die."""
        if role in self.starts:
            return ANYBODY
        if role is Role.DAEMON:
            return self.scene.daemon.pid
        if role is Role.TIER:
            return self.scene.worker()
        assert self.engine is not None
        return self.engine.process.pid

    def verify(self) -> bool:
        """When all is well again, whether what belongs to the operation is, too."""
        return True

    def on_disk(self) -> list[int]:
        """Pages that are on disk alone before it."""
        return []

    def lost(self) -> int:
        """Pages that may be gone beyond those that the daemon's counters tell of."""
        return 0
