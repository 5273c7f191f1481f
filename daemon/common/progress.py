"""Reports the progress of long operations: a bar on a terminal, lines in a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TextIO

from pagetier.shm import clock
from pagetier.shm.log_format import event
from pagetier.shm.units import format_size

Progress = Callable[[int, int], None]
"""`progress(done, total)` in bytes; `done` never decreases. Called often and from one thread; must return at once."""

LINE_SECONDS = 2.0
_STEP_SECONDS = 1.0
_STEPS = 4


def no_progress(done: int, total: int) -> None:
    """Reports nothing."""


def progress_for_people(title: str, log: logging.Logger) -> AbstractContextManager[Progress]:
    """Returns a progress bar on stderr if that is a terminal, else one that writes lines to `log`."""
    return progress_bar(title, sys.stderr) if sys.stderr.isatty() else nullcontext(ProgressLines(title, log))


@contextmanager
def progress_bar(title: str, stream: TextIO) -> Iterator[Progress]:
    """Yields a progress bar with bytes, rate and remaining time on `stream`, a terminal.

    Its last state stays visible.
    """
    # rich takes longer to import than everything else in the daemon.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Bars(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(file=stream)) as bars:
        task = bars.add_task(title, total=None, visible=False)  # without a total it would show "0/? bytes"
        yield lambda done, total: bars.update(task, completed=done, total=total, visible=True)


class ProgressLines:
    """Writes progress to a log: a line at the end, at quarters a second apart, and else each `LINE_SECONDS`."""

    def __init__(self, title: str, log: logging.Logger) -> None:
        self._title = title
        self._log = log
        self._began = self._logged_at = clock.now()
        self._logged_step = 0

    def __call__(self, done: int, total: int) -> None:
        """Logs a line if one is due; the last one says how long the operation took."""
        now = clock.now()
        step = _STEPS * done // total if total else _STEPS
        pause = LINE_SECONDS if step == self._logged_step else 0.0 if step == _STEPS else _STEP_SECONDS
        if now < self._logged_at + pause or self._logged_step == _STEPS:
            return
        self._logged_step, self._logged_at = step, now
        facts = event("progress", what=self._title, done=done, total=total)
        self._log.info("%s: %s", self._title, self._line(done, total, now - self._began), extra=facts)

    def _line(self, done: int, total: int, seconds: float) -> str:
        share = 100 * done // total if total else 100
        so_far = f"{format_size(done)} of {format_size(total)} ({share} %)"
        if done == total or not done:
            return f"{so_far} {'in' if done == total else 'after'} {seconds:.1f} s"
        left = seconds * (total - done) / done
        return f"{so_far}, {format_size(int(done / max(seconds, 1e-9)))}/s, {left:.0f} s left"
