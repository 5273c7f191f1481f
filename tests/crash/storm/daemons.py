"""A daemon that is forked from a warm process: a life costs an adoption, and not the start of an interpreter."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from pagetier.daemon import main as daemon_main
from pagetier.daemon.exits import Exit
from pagetier.shm._core import Observer
from running import RunningDaemon

from .family import Child, Family
from .scene import Scene

_READY: Final = "ready on"


class StormDaemon(RunningDaemon):
    """One at a time serves; others may be started beside it, and must be refused. look() sees who does; none waits."""

    def __init__(self, scene: Scene, family: Family) -> None:
        super().__init__()
        self.disk = Path(self.folder.name) / "disk"
        self._scene = scene
        self._family = family
        self._started: dict[int, float] = {}
        self.children: list[Child] = []
        self.adoptions: list[float] = []
        self.serving: Child | None = None

    def light(self) -> None:
        """Starts one more."""
        arguments = ["--name", self.name, "--socket", str(self.socket), *self._scene.flags(self.disk)]
        log = self._log_of(len(self._started))
        child = self._family.fork("daemon", lambda: _serve(arguments, log), len(self._started))
        self._started[child.seat] = time.monotonic()
        self.children.append(child)

    def look(self) -> bool:
        """Whether there is one that serves; who has just become ready is taken note of."""
        self.children = [child for child in self.children if child.lives]
        if self.serving is not None and not self.serving.lives:
            self.serving = None
        for child in self.children if self.serving is None else ():
            if _READY in self._log_of(child.seat).read_text():
                self.serving = child
                self.adoptions.append(time.monotonic() - self._started[child.seat])
        return self.serving is not None

    def observer(self) -> Observer:
        """Of the segments, which outlive any daemon but one that is stopped."""
        return self._observer()

    def worker(self) -> int:
        """The pid of the disk tier's worker; 0 while there is none."""
        child = self.serving
        if child is None or not child.lives:
            return 0
        try:
            pids = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
            return next((int(pid) for pid in pids if _is_worker(pid)), 0)
        except OSError:
            return 0

    def complaints(self) -> list[str]:
        """Lines of the logs that no daemon should write."""
        logs = "\n".join(self._log_of(life).read_text() for life in self._started)
        return [line for line in logs.splitlines() if "Traceback" in line or "Error" in line]

    def last_words(self) -> str:
        """What the one that was started last wrote."""
        return self._log_of(len(self._started) - 1).read_text()

    def ended_well(self, child: Child) -> bool:
        """Whether a daemon's end was to be expected: killed, told to go, or refused beside another one."""
        return child.killed or child.code in (0, Exit.REFUSED)

    def remove(self) -> None:
        """What it left in /dev/shm and its folder."""
        for name in self.leftovers():
            (Path("/dev/shm") / name).unlink()
        self.folder.cleanup()

    def _log_of(self, life: int) -> Path:
        path = Path(self.folder.name) / f"log-{life}"
        path.touch()
        return path


def _serve(arguments: list[str], log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    daemon_main.main(arguments, standalone_mode=False)


def _is_worker(pid: str) -> bool:
    return b"pagetier.tiers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
