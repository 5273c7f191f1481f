"""Runs the steps one after the other and writes each result at once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gpu_examination.steps import ROOT, Step

_GRACE_S = 3.0
_LEAST_S = 5.0  # a step that has less time left is not run


class ResultsFile:
    """The results as JSON lines, and beside them the log of what the steps print otherwise.

    Attributes:
        lines: All lines so far.
        log: The path of the log.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self.log = path, path.with_suffix(".log")
        self.lines: list[dict[str, Any]] = []

    def add(self, step: str, line: Mapping[str, Any]) -> None:
        """Appends a line to the file, which then survives the end of this process."""
        self.lines.append({"step": step, **line})
        with self._path.open("a") as file:
            file.write(json.dumps(self.lines[-1]) + "\n")


def run(steps: Sequence[Step], results: ResultsFile, environment: Mapping[str, str], seconds: float) -> None:
    """Runs all steps. A step that fails, hangs or lacks its tool does not keep the next ones from running.

    Args:
        steps: The steps.
        results: Receives the lines of each step and then its outcome.
        environment: The environment of all steps.
        seconds: After how many seconds the last step has to end.
    """
    ends = time.monotonic() + seconds
    for step in steps:
        began, logged = time.monotonic(), _size(results.log)
        outcome = _outcome(step, results, environment, min(step.seconds, ends - began))
        line: dict[str, Any] = {"outcome": outcome, "seconds": round(time.monotonic() - began, 1)}
        if outcome.startswith(("failed", "stopped")):
            line["log"] = _tail(results.log, logged)
        results.add(step.name, line)
        print(f"{step.name}: {outcome} ({line['seconds']} s)", flush=True)


def summary(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a line for each number that has a goal, and the count of steps by outcome."""
    numbers = [line for line in lines if line.get("verdict")]
    tests = [line["outcome"].partition(" ")[0] for line in lines if "::" in line.get("name", "")]
    outcomes = [line["outcome"] for line in lines if "outcome" in line and "name" not in line]
    texts = [f"{_number(line):<60} {line['verdict']} ({line['goal']}); {line['against']}" for line in numbers]
    texts += [f"tests: {_counted(tests)}"] if tests else []
    return [*texts, f"steps: {_counted([outcome.partition(':')[0] for outcome in outcomes])}"]


def _number(line: Mapping[str, Any]) -> str:
    return f"{line['step']} {line['name']} {line['value']:.4g} {line['unit']}"


def _counted(words: Sequence[str]) -> str:
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words)))


def _outcome(step: Step, results: ResultsFile, environment: Mapping[str, str], seconds: float) -> str:
    if step.tool and shutil.which(step.tool, path=environment.get("PATH")) is None:
        return f"skipped: {step.tool} is not on PATH"
    if seconds < _LEAST_S:
        return "skipped: no time is left"
    with results.log.open("ab") as log:
        log.write(f"== {step.name}\n".encode())
        log.flush()
        return _run(step, results, log, {**environment, **step.environment}, seconds)


def _run(step: Step, results: ResultsFile, log: IO[bytes], environment: Mapping[str, str], seconds: float) -> str:
    """Runs a step in a session of its own, of which no process is left at the end, and returns its outcome."""
    try:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    except OSError as error:
        return f"failed: {error}"
    reader = threading.Thread(target=_read, args=(step.name, process.stdout, results, log))
    reader.start()
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"stopped after {seconds:.0f} s"
    finally:
        _end(process)
        reader.join()
    return "done" if code == 0 else f"failed with exit code {code}"


def _read(step: str, stdout: IO[bytes], results: ResultsFile, log: IO[bytes]) -> None:
    """Copies lines that are JSON objects to the results and all others to the log."""
    with stdout:
        for line in stdout:
            found = _object(line)
            if found is None:
                log.write(line)
                log.flush()
            else:
                results.add(step, found)


def _object(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        return found if isinstance(found, dict) else None
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends all processes of a step's session: first by SIGTERM, so that daemons remove their shared memory."""
    ends = time.monotonic() + _GRACE_S
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while time.monotonic() < ends:
            process.poll()
            os.killpg(process.pid, 0)  # raises when no process is left
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _tail(path: Path, begin: int) -> str:
    """Returns the end of what a step has logged."""
    return path.read_bytes()[begin:][-2000:].decode(errors="replace") if path.exists() else ""
