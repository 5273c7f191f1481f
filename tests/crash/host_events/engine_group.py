"""Runs engines beside a daemon, and reads how each of them was served."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from eventually import PATIENCE_S, eventually
from host_events.engine import Served
from running_daemon import RunningDaemon

_FOLDERS: Final = [str(folder) for folder in (Path(__file__).parents[1], Path(__file__).parents[2] / "harness")]


class EngineProcess:
    """One engine. `before` is the prefix of its command."""

    def __init__(self, daemon: RunningDaemon, seed: int, before: Sequence[str], variables: Mapping[str, str]) -> None:
        self.output = Path(daemon.folder.name) / f"engine-{seed}"
        command = [*before, sys.executable, "-m", "host_events.engine", str(daemon.socket), str(seed)]
        environ = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(_FOLDERS)}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output, env=environ)

    @property
    def served(self) -> Served:
        """The service that it got so far."""
        for line in reversed(self.output.read_bytes().splitlines(keepends=True)):
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(line, type=Served)
        return Served()

    def wait_for(self, rounds: int) -> bool:
        """Waits until it has done this many more rounds; returns False if one of them does not end."""
        began = self.served.rounds
        return all(eventually(lambda: self.served.rounds > began + done) for done in range(rounds))  # noqa: B023

    def wait_killed(self) -> int:
        """Waits until the engine was killed, and returns its exit code."""
        code = self.process.wait(PATIENCE_S)
        self.end()
        return code

    def end(self) -> None:
        """Kills the engine if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(BrokenPipeError):
                self.process.stdin.close()

    def leave(self) -> Served:
        """Ends the engine regularly and returns how it was served. Raises AssertionError if it failed."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0, self.output.read_text()
        return self.served


class EngineGroup:
    """Some engines beside a daemon. As a context manager it leaves no engine behind."""

    def __init__(self, daemon: RunningDaemon, variables: Mapping[str, str] | None = None) -> None:
        self._daemon = daemon
        self._variables = variables or {}
        self.members: list[EngineProcess] = []

    def start_engine(self, seed: int, before: Sequence[str] = ()) -> EngineProcess:
        """Starts one more engine, and waits until it has done some rounds."""
        self.members.append(EngineProcess(self._daemon, seed, before, self._variables))
        assert self.members[-1].wait_for(2), self.members[-1].output.read_text()
        return self.members[-1]

    def work(self, rounds: int = 20) -> None:
        """Waits until each engine has done this many more rounds."""
        for member in self.members:
            assert member.wait_for(rounds), f"{member.output.read_text()[-2000:]}\n{self._daemon.log.read_text()}"

    def leave(self) -> list[Served]:
        """Ends all engines and returns how each was served.

        Asserts that no page had other bytes, and that none was missed but those that the disk was too slow to write.
        """
        served = [member.leave() for member in self.members]
        missed, lost = sum(one.missed for one in served), self._daemon.header().disk_lost
        assert not any(one.wrong for one in served) and missed <= lost, (served, lost, self._daemon.log.read_text())
        return served

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.end()
