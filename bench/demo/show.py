"""The output of the demo: lines, a progress bar on a terminal, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ipc import Report, Step


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
    """A bar for the current step and a line for each finished one."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._bar = bars.add_task("")
        self._what = ""
        self._began = 0.0

    def __call__(self, step: Step) -> None:
        """Advances the current step, or starts the next one."""
        if step.what != self._what:
            self.finish()
            self._what, self._began = step.what, time.monotonic()
            self._bars.reset(self._bar, total=None)
        self._bars.update(self._bar, description=step.what, completed=step.done, total=step.total or None)

    def finish(self) -> None:
        """Ends the last step."""
        if self._what:
            self._bars.console.print(f"  {time.monotonic() - self._began:5.1f} s  {self._what}")
        self._what = ""


def summary_of(report: Report) -> str:
    """Summarises an engine's report."""
    mib = report.page_bytes / 2**20
    stored = f"; {report.pages_stored} pages of {mib:.1f} MiB stored" if report.pages_stored else ""
    return (
        f"  {report.prompt_tokens:,} tokens: {report.memory_tokens:,} from memory, {report.disk_tokens:,} from disk,"
        f" {report.computed_tokens:,} computed{stored}\n"
        f"  logits equal at {report.positions_equal:,} of {report.computed_tokens:,} computed positions\n"
    )


def table_of(reports: Sequence[Report]) -> Table:
    """Returns a table with a row for each engine; it fits into 80 columns."""
    model = f"{reports[0].parameters / 1e6:.0f} million parameters, float32, {reports[0].threads} threads"
    table = Table(title="Where the tokens came from, and the time to the first new one", caption=model)
    for name in ("engine", "prompt", "memory", "disk", "computed", "first token", "uncached", "logits"):
        table.add_column(name, justify="left" if name == "logits" else "right")
    for engine, report in enumerate(reports, 1):
        tokens = (report.prompt_tokens, report.memory_tokens, report.disk_tokens, report.computed_tokens)
        seconds = (report.first_token_s, report.first_token_uncached_s)
        verdict = "equal" if report.exact else "[bold red]differ"
        table.add_row(str(engine), *(f"{n:,}" for n in tokens), *(f"{s:.2f} s" for s in seconds), verdict)
    return table
