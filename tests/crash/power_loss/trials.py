"""Runs many trials in a process of their own, which has one thread and forks a child for each of them.

`python -m MODULE JSON` runs the trials of a module; JSON is a Wanted, and the output is a Tally.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import msgspec

from child_process import run_and_exit
from eventually import PATIENCE_S, Stopwatch
from oracle.checker import Kind, Violation
from power_loss import mutants
from power_loss.losses import Way
from power_loss.recording import plain
from power_loss.workload import TERMS, Terms
from store_pages import MEMORY

_CHUNK: Final = 1 << 20
_NOTHING: Final = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
_Trial = TypeVar("_Trial")


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The trials to run.

    Attributes:
        seed: Determines all random choices.
        count: The number of trials.
        violations: The number of broken promises after which no further trial begins.
        mistake: A deliberate bug of the tier, see mutants.
        stream: The recorded stream of a folder, for power losses.
        folder: The recorded folder.
        way: The only way to lose changes that is tried.
        keys: A file with the keys of all pages, for a recording without a workload's marks.
        terms: The settings of the recorded tier.
    """

    seed: int
    count: int
    violations: int = 100
    mistake: str = ""
    stream: str = ""
    folder: str = ""
    way: Way | None = None
    keys: str = ""
    terms: Terms = TERMS


class Tally(msgspec.Struct):
    """The results of trials. `counts` has a table for each thing that is counted."""

    counts: dict[str, dict[str, int]] = msgspec.field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    violations: list[str] = []

    def add(self, table: str, what: str, number: int = 1) -> None:
        """Counts."""
        self.counts[table][what] += number

    def blame(self, what: str, violations: Iterable[Violation]) -> None:
        """Records the broken promises of a trial."""
        self.violations += [f"{what}: {one}" for one in violations]


class Ended(msgspec.Struct, frozen=True):
    """The end of a child.

    Attributes:
        said: The bytes that the work returned.
        blame: The exception or the timeout that ended it, which breaks a promise.
        signal: The signal that killed the child.
    """

    said: bytes = b""
    blame: Violation | None = None
    signal: int = 0


def results(module: str, wanted: Wanted) -> Tally:
    """Returns the results of the trials of a module, which run in another process. Prints what was wanted."""
    text = msgspec.json.encode(wanted).decode()
    print(f"python -m {module} '{text}'")  # noqa: T201
    done = subprocess.run([sys.executable, "-m", module, text], env=plain(), stdout=subprocess.PIPE, check=True)
    print(done.stdout.decode())  # noqa: T201
    return msgspec.json.decode(done.stdout, type=Tally)


def main(run: Callable[[Wanted, Path, Tally], None]) -> None:
    """Runs the trials that the command line wants, with a room for their files."""
    wanted, tally = msgspec.json.decode(sys.argv[1], type=Wanted), Tally()
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=MEMORY) as room:
        run(wanted, Path(room), tally)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(tally)).decode() + "\n")


def try_all(trials: Iterable[_Trial], attempt: Callable[[_Trial], object], wanted: Wanted, tally: Tally) -> None:
    """Tries one after the other, until all are tried or enough promises are broken."""
    for trial in trials:
        attempt(trial)
        if len(tally.violations) >= wanted.violations:
            return


def make_mistake(wanted: Wanted) -> None:
    """Applies the wanted bug to this process and its children."""
    mutants.make(wanted.mistake)


def in_a_child(work: Callable[[], bytes]) -> Ended:
    """Runs the work, which may crash or hang, in a child. The caller guarantees that this process has one thread."""
    mine, its = os.pipe()
    child = os.fork()
    if not child:
        os.close(mine)
        _work(work, its)
    os.close(its)
    try:
        said, hung = _said(mine)
    finally:
        os.close(mine)
        os.kill(child, signal.SIGKILL)  # changes nothing if it is about to end: it has closed the pipe by its exit
        _, status = os.waitpid(child, 0)
    if hung:
        return Ended(blame=Violation(Kind.HANG, "it does not end"))
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    if os.WEXITSTATUS(status):
        return Ended(blame=Violation(Kind.CRASH, said.decode(errors="replace")))
    return Ended(said)


def _said(pipe: int) -> tuple[bytes, bool]:
    """Returns all bytes until the child closes the pipe, and whether it fails to do so."""
    said, watch = b"", Stopwatch()
    while select.select([pipe], [], [], max(0.0, PATIENCE_S - watch.seconds))[0]:
        some = os.read(pipe, _CHUNK)
        if not some:
            return said, False
        said += some
    return said, True


def _work(work: Callable[[], bytes], pipe: int) -> NoReturn:
    os.dup2(_NOTHING, 2)
    run_and_exit(lambda: _say(pipe, work()), lambda: _say(pipe, traceback.format_exc().encode()))


def _say(pipe: int, said: bytes) -> None:
    while said:
        said = said[os.write(pipe, said) :]
