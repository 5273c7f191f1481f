"""Shows pagetier's purpose: a prompt goes to shared host memory and is loaded exactly in other processes.

`make demo` runs it. It exits with 1 if logits differed, an expected hit was a miss, or a process failed.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ipc import Report, Step, Task
from processes import Daemon, DemoError, environ, installed, run_engine
from prompt import SHARED_TOKENS, TEXT_BYTES
from show import Screen, summary_of, table_of

FROM_DISK = 4
INTRO = f"""\
[bold]pagetier demo[/bold]

Four engines, each in its own process, read the same text, each followed by a
different question. The text is the first {TEXT_BYTES:,} bytes of "Special method names"
in Python's language reference, a byte a token. The model is a Llama with random
weights: its answers are meaningless, but it computes like any other. Each engine
reads its prompt with pagetier, then again without, and compares the logits of
both runs bit by bit.
"""
KILLED = "[bold]Kill the daemon[/bold] with SIGKILL, like a crash: the pages stay in shared memory.\n"
STOPPED = "[bold]Stop the daemon[/bold]: it writes the pages to disk and frees the memory.\n"


class Demo:
    """The steps of the demo, with one daemon after another on the same memory."""

    def __init__(self, screen: Screen, daemon: Daemon, folder: Path) -> None:
        self._screen = screen
        self._daemon = daemon
        self._folder = folder

    def run(self) -> list[Report]:
        """Runs all engines and returns their reports. Raises DemoError if a process fails."""
        self._start("Start the daemon")
        first = self._engine(1, "is the first to read the text and stores its pages.")
        second = self._engine(2, "has the same text and another question: the text's full pages are in memory now.")
        self._daemon.kill()
        self._screen.say(KILLED)
        self._start("Start another daemon")
        third = self._engine(3, "has a third question; the daemon that stored the pages is gone.")
        self._daemon.stop()
        self._screen.say(STOPPED)
        self._start("Start a third daemon, in empty memory")
        fourth = self._engine(4, "has a fourth question: now the text's pages come from disk.")
        return [first, second, third, fourth]

    def stats(self) -> None:
        """Prints the daemon's statistics. Raises DemoError if they cannot be read."""
        command = ["pagetier", "stats", "--socket", str(self._daemon.socket)]
        self._screen.say(f"\n[bold]{shlex.join(command)}[/bold]")
        sys.stdout.flush()
        code = subprocess.run([installed(command[0]), *command[1:]], env=environ(), check=False).returncode
        if code:
            raise DemoError(f"pagetier stats ended with exit code {code}")

    def _start(self, title: str) -> None:
        self._screen.say(f"[bold]{title}[/bold]: {shlex.join(self._daemon.command)}")
        with self._screen.steps() as show_step:
            show_step(Step("allocate the memory and start serving"))
            self._daemon.start()
        self._screen.say()

    def _engine(self, number: int, what: str) -> Report:
        self._screen.say(f"[bold]Engine {number}[/bold] {what}")
        with self._screen.steps() as show_step:
            show_step(Step("start Python, import torch and transformers"))
            report = run_engine(Task(str(self._daemon.socket), number), self._folder, show_step)
        self._screen.say(summary_of(report))
        return report


def wrong(reports: list[Report]) -> Iterator[str]:
    """Yields what differs from the expected result."""
    for engine, report in enumerate(reports, 1):
        expected = (SHARED_TOKENS if engine in (2, 3) else 0, SHARED_TOKENS if engine == FROM_DISK else 0)
        if (report.memory_tokens, report.disk_tokens) != expected:
            memory, disk = report.memory_tokens, report.disk_tokens
            yield f"engine {engine} loaded {memory} tokens from memory and {disk} from disk instead of {expected}"
        if not report.exact:
            yield f"engine {engine} has equal logits at {report.positions_equal} of {report.computed_tokens} positions"


def show(screen: Screen) -> int:
    """Runs the whole demo and returns the exit code."""
    began = time.monotonic()
    screen.say(INTRO)
    with tempfile.TemporaryDirectory(prefix="pagetier-demo-") as folder, Daemon(Path(folder)) as daemon:
        demo = Demo(screen, daemon, Path(folder))
        reports = demo.run()
        screen.show(table_of(reports))
        demo.stats()
    found = list(wrong(reports))
    for line in found:
        screen.fail(line)
    if not found:
        screen.say(f"\nAll logits are equal, bit by bit. It took {time.monotonic() - began:.0f} s in all.")
    return 1 if found else 0


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the demo like an error, so that it cleans up."""
    del frame
    sys.exit(128 + number)


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    screen = Screen()
    try:
        code = show(screen)
    except DemoError as error:
        screen.fail(str(error))
        code = 1
    except KeyboardInterrupt:
        screen.fail("interrupted; all processes of the demo are stopped")
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
