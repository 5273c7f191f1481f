"""One side of a round: the process that measures the operations of a benchmark with one build."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from comparison.commit_build import Build, CannotCompareError

_SIZES = {"BENCH_ENTRIES": "250000"}  # more than the caches hold, and filled in a second
_PROGRAM = Path(__file__).parents[1] / "operation_times.py"


class Report(msgspec.Struct, frozen=True):
    """The last line of the process: seconds by name for each turn, and the files of pagetier that were used."""

    figures: dict[str, list[float]]
    files: list[str]


class MeasuredSide:
    """Runs `bench/operation_times.py` with a build while the context lasts."""

    def __init__(self, bench: str, build: Build) -> None:
        self._bench, self._build = bench, build

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, str(_PROGRAM), self._bench]
        self._process = subprocess.Popen(
            command,
            env=_SIZES | self._build.environment(),
            cwd=self._build.imports,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # the end of its input ends a process that waits for a turn
        self._errors.close()

    def advance(self) -> Report | None:
        """Lets the process run until it waits for its next turn.

        Returns:
            The report if there are no more turns.

        Raises:
            CannotCompareError: If the benchmark cannot run with this build, or another build's files were used.
        """
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise CannotCompareError(f"{self._bench} cannot run with {self._build.name}:\n{self._last_errors()}")
        return None if line.isspace() else self._checked(msgspec.json.decode(line, type=Report))

    def _last_errors(self) -> str:
        self._errors.seek(0)
        return "\n".join(self._errors.read().decode(errors="replace").splitlines()[-10:])

    def _checked(self, report: Report) -> Report:
        if foreign := self._build.foreign(report.files):
            files = ", ".join(foreign[:3])
            raise CannotCompareError(f"{self._bench} with {self._build.name} used files of another build: {files}")
        return report
