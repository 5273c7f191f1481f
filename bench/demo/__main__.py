"""Shows pagetier's purpose: a model's prompt is computed once, and answered at once by every later process.

`make demo` runs it, and `MODEL=file.gguf make demo` with a model of your own. It exits with 1 if logits differed, an
expected hit was a miss, or a process failed.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
from rich.markup import escape
from rich.table import Table

from messages import Event, Piece, Report, Step, Task
from model_file import ModelError, ModelFile, find_model
from processes import Daemon, DemoError, engine_process, installed
from prompt import FUNCTIONS, PAGE_TOKENS, program
from show import Screen, Steps

_ENGINE = str(Path(__file__).with_name("engine.py"))
_BUILD = Path(__file__).parents[2] / "build" / "demo"
INTRO = """\
[bold]pagetier demo[/bold]

Four engines of llama.cpp, one after the other and each in its own process, read
the same program, Python's module "bisect" ({size:,} bytes), and each completes a
different function after it. Each does so with pagetier, then again without, with
one thread, and compares the logits of both runs bit by bit.

{about}
Meanwhile, in another terminal: [bold]{top}[/bold]
"""


class Demo:
    """The steps of the demo, with one daemon after another on the same memory."""

    def __init__(self, screen: Screen, daemon: Daemon, folder: Path, model: ModelFile) -> None:
        self._screen = screen
        self._daemon = daemon
        self._folder = folder
        self._model = model

    def run(self) -> list[Report]:
        """Runs all engines and returns their reports. Raises DemoError if a process fails."""
        self._start("Start the daemon")
        first = self._engine(1, "is the first to read the program.")
        self._screen.say(
            "[bold]Kill engine 1[/bold] with SIGKILL, like a crash: its pages are in the daemon's memory.\n"
        )
        second = self._engine(2, "is another process, with the same program before another function.")
        self._daemon.kill()
        self._screen.say("[bold]Kill the daemon[/bold] with SIGKILL: the pages stay in shared memory.\n")
        self._start("Start another daemon")
        third = self._engine(3, "reads the pages that the killed daemon left.")
        self._daemon.stop()
        self._screen.say("[bold]Stop the daemon[/bold]: it writes the pages to disk and frees the memory.\n")
        self._start("Start a third daemon, in empty memory")
        fourth = self._engine(4, "reads the pages from disk.")
        return [first, second, third, fourth]

    def tokens_from_disk(self) -> int:
        """Returns how many tokens the last daemon had on disk for its engine. Raises DemoError."""
        return int(self._daemon.stats()["lookups"]["disk_tokens"])

    def _start(self, title: str) -> None:
        self._screen.say(f"[bold]{title}[/bold]: {shlex.join(self._daemon.command)}")
        with self._screen.steps() as show_step:
            show_step(Step("allocate the memory and start serving"))
            self._daemon.start()
            show_step(Step("open the disk tier"))
            self._daemon.wait_disk()
        self._screen.say()

    def _engine(self, number: int, what: str) -> Report:
        self._screen.say(f"[bold]Engine {number}[/bold] {what}")
        task = Task(str(self._daemon.socket), number, [str(file) for file in self._model.files])
        command = [sys.executable, _ENGINE, msgspec.json.encode(task).decode()]
        with (
            engine_process(command, self._folder / f"engine{number}.log") as lines,
            self._screen.steps() as steps,
        ):
            report = follow(lines, FUNCTIONS[number - 1], steps)
        self._screen.say(summary_of(report))
        return report


def follow(lines: Iterator[bytes], prompt: str, steps: Steps) -> Report:
    """Shows the events of an engine, with the end of its prompt before its new text, and returns its report."""
    text = f"\n{prompt}\n    "
    for line in lines:
        match msgspec.json.decode(line, type=Event):
            case Step() as step:
                steps(step)
            case Piece(piece):
                steps.stream(text + piece)
                text = ""
            case Report() as report:
                return report
    raise DemoError("an engine ended without a report")


def summary_of(report: Report) -> str:
    """Summarises an engine's report."""
    return (
        f"  to the first token: [bold]{report.first_token_s:.2f} s with pagetier[/bold],"
        f" {report.first_token_uncached_s:.2f} s without\n"
        f"  {report.prompt_tokens:,} tokens, {report.loaded_tokens:,} of them from pagetier;"
        f" logits equal at {report.equal} of {report.new_tokens} new tokens\n"
    )


def table_of(reports: list[Report]) -> Table:
    """Returns a table with a row for each engine; it fits into 80 columns."""
    table = Table(title="Time to the first token", caption=escape(reports[0].model))
    for name in ("engine", "tokens", "loaded", "with pagetier", "without", "ratio", "logits"):
        table.add_column(name, justify="left" if name in ("engine", "logits") else "right")
    places = ("1 empty cache", "2 memory", "3 adopted", "4 disk")
    for place, report in zip(places, reports, strict=True):
        times = (report.first_token_s, report.first_token_uncached_s)
        ratio = f"{times[1] / times[0]:.0f} x" if report.loaded_tokens else ""
        verdict = "equal" if report.exact else "[bold red]differ"
        tokens = (report.prompt_tokens, report.loaded_tokens)
        table.add_row(place, *(f"{n:,}" for n in tokens), *(f"{s:.2f} s" for s in times), ratio, verdict)
    return table


def wrong(reports: list[Report], disk_tokens: int) -> Iterator[str]:
    """Yields what differs from the expected result."""
    for engine, report in enumerate(reports, 1):
        shared = (report.prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS if engine > 1 else 0
        if report.loaded_tokens != shared:
            yield f"engine {engine} loaded {report.loaded_tokens} tokens instead of {shared}"
        if not report.exact:
            yield f"engine {engine} has equal logits at {report.equal} of {report.new_tokens} new tokens"
    if not disk_tokens:
        yield "the last engine found nothing on disk"


def show(screen: Screen) -> int:
    """Runs the whole demo and returns the exit code."""
    began = time.monotonic()
    _BUILD.mkdir(parents=True, exist_ok=True)
    model = find_model(os.environ, _BUILD)
    with tempfile.TemporaryDirectory(prefix="pagetier-demo-") as folder, Daemon(Path(folder)) as daemon:
        top = shlex.join([installed("pagetier"), "top", "--socket", str(daemon.socket)])
        screen.say(INTRO.format(size=len(program()), about=escape(model.about), top=escape(top)))
        demo = Demo(screen, daemon, Path(folder), model)
        reports = demo.run()
        found = list(wrong(reports, demo.tokens_from_disk()))
        screen.show(table_of(reports))
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
    except (DemoError, ModelError) as error:
        screen.fail(str(error))
        code = 1
    except KeyboardInterrupt:
        screen.fail("interrupted; all processes of the demo are stopped")
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
