"""The output of a demo: lines, a progress bar on a terminal, and streamed text."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from messages import Step


class Screen:
    """The demo's terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)

    def say(self, text: str = "") -> None:
        """Prints text with rich's markup."""
        self._console.print(text)

    def fail(self, text: str) -> None:
        """Prints a failure."""
        self._console.print(f"[bold red]FAILED[/bold red] {escape(text)}")

    def show(self, what: RenderableType) -> None:
        """Prints anything that rich can render, such as a table."""
        self._console.print(what)

    @contextmanager
    def steps(self) -> Iterator[Steps]:
        """Shows the consecutive steps of one process."""
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        bars = Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal)
        with bars:
            steps = Steps(bars)
            yield steps
            steps.finish()


class Steps:
    """A bar for the current step, a line for each finished one, and the text that is streamed between two steps."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._bar = bars.add_task("")
        self._what = ""
        self._began = 0.0
        self._streaming = False

    def __call__(self, step: Step) -> None:
        """Advances the current step, or starts the next one."""
        if step.what != self._what:
            self.finish()
            self._what, self._began = step.what, time.monotonic()
            self._bars.reset(self._bar, total=None)
        self._bars.update(self._bar, description=step.what, completed=step.done, total=step.total or None)

    def stream(self, text: str) -> None:
        """Prints text after the text that was streamed before. It ends the current step."""
        if not self._streaming:
            self.finish()
            self._bars.stop()
            self._streaming = True
        self._bars.console.out(text, end="", highlight=False)
        sys.stdout.flush()

    def finish(self) -> None:
        """Ends the last step, and the line of streamed text."""
        if self._streaming:
            self._bars.console.print("\n")
            self._streaming = False
            self._bars.start()
        if self._what:
            self._bars.console.print(f"  {time.monotonic() - self._began:5.1f} s  {self._what}")
        self._what = ""
