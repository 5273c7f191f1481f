"""Forks daemons from a process that has imported everything, so that a start costs no start of an interpreter."""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from pathlib import Path
from typing import Final

import daemon_constants
from eventually import eventually
from pagetier.shm.exit_codes import Exit
from process_states import workers_of
from running_daemon import RunningDaemon
from simulator.children import Child, ChildProcesses
from simulator.leftovers import prefix_of_this_process
from simulator.scenes import SimulatedScene

_READY: Final = "ready on"
_DISK_OPEN: Final = "event=disk_open"
_BAD: Final = re.compile(r"Traceback|Error|\blevel=(error|critical)\b")
_HARMLESS: Final = re.compile(r"\bevent=(refused|fleet_\w+)\b")
"""Log lines that are judged by the exit code of the rejected daemon instead, and those about a store that fails."""

_PATIENCE_S: Final = 60.0


class CacheDaemons(RunningDaemon):
    """Daemons of one cache. One at a time serves; others may be started beside it and must be rejected.

    No method waits but remove() and those whose name says so; poll() finds out which one serves.
    """

    def __init__(self, scene: SimulatedScene, processes: ChildProcesses) -> None:
        super().__init__()
        self.name = prefix_of_this_process() + self.name.rpartition("-")[2]
        self.folder.cleanup()
        self.folder = tempfile.TemporaryDirectory(prefix=prefix_of_this_process())
        self.socket = Path(self.folder.name) / "pagetier.sock"
        self.disk = Path(self.folder.name) / "disk"
        self._scene = scene
        self._processes = processes
        self._started: dict[int, float] = {}
        self._rivals: dict[int, list[Child]] = {}
        self.children: list[Child] = []
        self.adoptions: list[float] = []
        self.serving: Child | None = None

    def start_daemon(self) -> None:
        """Starts one more daemon."""
        arguments = ["--name", self.name, "--socket", str(self.socket), *self._scene.flags(self.disk)]
        log = self._log_of(len(self._started))
        child = self._processes.fork("daemon", lambda: _serve(arguments, log), len(self._started))
        self.note(child)

    def note(self, child: Child) -> None:
        """Records a daemon that was just started."""
        self._started[child.seat] = time.monotonic()
        others = [other for other in self.children if other.lives]
        self._rivals[child.seat] = others
        for other in others:
            self._rivals[other.seat].append(child)
        self.children.append(child)

    def poll(self) -> bool:
        """Returns whether a daemon serves, and records one that has just become ready."""
        self.children = [child for child in self.children if child.lives]
        if self.serving is not None and not self.serving.lives:
            self.serving = None
        for child in self.children if self.serving is None else ():
            if _READY in self._log_of(child.seat).read_text():
                self.serving = child
                self.adoptions.append(time.monotonic() - self._started[child.seat])
        return self.serving is not None

    def await_serving(self) -> None:
        """Waits until a daemon serves. Raises RuntimeError if none does."""

        def is_decided() -> bool:
            self._processes.reap()
            return self.poll() or not self.children

        eventually(is_decided, _PATIENCE_S)
        if self.serving is None:
            raise RuntimeError(f"no daemon became ready: {self.last_output()}")

    def await_disk(self, opened: int = 0) -> None:
        """Waits until devices were opened more than `opened` times. Raises RuntimeError if they are not."""
        if not eventually(lambda: self.disks_opened() > opened, _PATIENCE_S):
            raise RuntimeError(f"the disk tier did not open: {self.last_output()}")

    def workers(self) -> list[int]:
        """Returns the pids of the workers: one for each device of the disk tier that has one, and that of the fleet."""
        child = self.serving
        return workers_of(child.pid) if child is not None and child.lives else []

    def worker(self, rng: random.Random) -> int:
        """Returns the pid of one of the workers; 0 if there is none."""
        workers = self.workers()
        return rng.choice(workers) if workers else 0

    def complaints(self) -> list[str]:
        """Returns the log lines that no daemon should write."""
        return [line for line in self._logs() if _BAD.search(line) and not _HARMLESS.search(line)]

    def await_fleet(self) -> None:
        """Waits until the fleet is open. Raises RuntimeError if it does not open."""
        if not eventually(lambda: self.snapshot().fleet.standing == "open", _PATIENCE_S):
            raise RuntimeError(f"the fleet did not open: {self.last_output()}")

    def disks_opened(self) -> int:
        """Returns how often a device of the disk tier was opened and its content loaded into the index."""
        return sum(_DISK_OPEN in line for line in self._logs())

    def last_output(self) -> str:
        """Returns the log of the daemon that was started last."""
        return self._log_of(len(self._started) - 1).read_text()

    def ended_well(self, child: Child) -> bool:
        """Returns whether a daemon's end was expected: killed, or rejected beside another one that was not rejected."""
        beside = any(rival.code != Exit.REFUSED for rival in self._rivals[child.seat])
        return child.killed_by_test or (beside and child.code == Exit.REFUSED)

    def remove(self) -> None:
        """Removes the daemon's segments in /dev/shm and its folder."""
        for name in self.leftovers():
            (Path("/dev/shm") / name).unlink()
        self.folder.cleanup()

    def _logs(self) -> list[str]:
        return [line for life in self._started for line in self._log_of(life).read_text().splitlines()]

    def _log_of(self, life: int) -> Path:
        path = Path(self.folder.name) / f"log-{life}"
        path.touch()
        return path


def _serve(arguments: list[str], log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    daemon_constants.run(arguments, standalone_mode=False)
