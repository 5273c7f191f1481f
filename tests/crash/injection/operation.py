"""Defines an operation of a sweep: its preparation, its action and its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Final

from injection.forked_processes import ForkedEngine
from injection.injector import ANYBODY, Role
from injection.scene import InjectionScene

KNOWN: Final = 3
FEW: Final = 4


class Operation(ABC):
    """One run of an operation, in a scene with its flags.

    Attributes:
        roles: The roles whose failpoints are swept.
        flags: Additional flags of the daemon.
        keeps_pages: Whether the pages `known`, which are stored before the operation, stay in memory.
        starts: The roles whose process starts during the operation, so that its pid is not known before.
        ends_daemon: Whether the daemon ends during the operation.
    """

    roles: ClassVar[tuple[Role, ...]] = (Role.ENGINE, Role.DAEMON)
    flags: ClassVar[tuple[str, ...]] = ()
    keeps_pages: ClassVar[bool] = True
    starts: ClassVar[tuple[Role, ...]] = ()
    ends_daemon: ClassVar[bool] = False

    def __init__(self, scene: InjectionScene) -> None:
        self.scene = scene
        self.known: list[int] = []
        self.engine: ForkedEngine | None = None
        self.others: list[ForkedEngine] = []

    @classmethod
    def flags_in(cls, folder: Path) -> tuple[str, ...]:
        """Returns the additional flags of the daemon; `folder` is the place for a disk."""
        del folder
        return cls.flags

    @classmethod
    def begun(cls, scene: InjectionScene) -> Operation:
        """Returns a prepared operation in a new case."""
        scene.begin()
        operation = cls(scene)
        operation.prepare()
        return operation

    def prepare(self) -> None:
        """Prepares the operation, in a scene with an empty cache in which all processes run."""
        self.known = self.scene.numbers(KNOWN)
        assert self.scene.store(self.known) == KNOWN
        self.scene.rest()
        self.engine = self.scene.engine()

    @abstractmethod
    def act(self) -> None:
        """Starts the operation without waiting for its end."""

    def first(self) -> ForkedEngine:
        """Returns the engine that executes the operation."""
        assert self.engine is not None
        return self.engine

    def send(self, command: str, *arguments: Any) -> None:
        """Sends a command to the engine that executes the operation."""
        self.first().send_command(command, *arguments)

    def done(self) -> bool:
        """Returns whether the operation is over."""
        if self.ends_daemon:
            return not self.scene.daemon.lives
        return self.engines_done() and self.scene.quiet()

    def engines_done(self) -> bool:
        """Returns whether all engines have executed their commands."""
        return all(engine.idle for engine in self.engines())

    def engines(self) -> list[ForkedEngine]:
        """Returns the engines, without the first one if it has died."""
        first = [self.engine] if self.engine is not None else []
        return first + self.others

    def pids_of_engines(self) -> list[int]:
        """Returns the pids of these engines."""
        return [engine.process.pid for engine in self.engines()]

    def pid(self, role: Role) -> int:
        """Returns the pid of the process in this role, or ANYBODY if it is not known yet."""
        if role in self.starts:
            return ANYBODY
        if role is Role.DAEMON:
            return self.scene.daemon.pid
        return self.scene.worker() if role is Role.TIER else self.first().process.pid

    def verify(self) -> bool:
        """Returns whether the state that the operation requires holds after the recovery."""
        return True

    def on_disk(self) -> list[int]:
        """Returns the pages that are on disk only before the operation."""
        return []

    def load_away(self, seconds: float) -> None:
        """Loads the pages that are not in memory, with this timeout. A tier that hangs must not keep it for ever."""
        self.scene.verify(self.on_disk(), seconds)

    def lost(self) -> int:
        """Returns how many pages may be lost beyond those that the daemon's counters report."""
        return 0
