"""Shows the progress of a chaos run: one line that is redrawn, or a line every 30 s if stderr is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from chaos.round_counts import Tally

Show: TypeAlias = Callable[[str, Tally, Tally], None]
"""Takes the name of the scene, the counts of the earlier rounds and those of the current round."""

_LINE_EVERY_S: Final = 30.0
_DRAW_EVERY_S: Final = 0.2


@contextmanager
def shown(seconds: float) -> Iterator[Show]:
    """Yields a function that shows the progress, to be called from one thread. `seconds` is the expected total time."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(seconds)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    # Progress draws only when it is called: a refresh thread of its own would not survive the forks.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        task, began, drawn = progress.add_task("", total=seconds), time.monotonic(), [0.0]

        def draw(where: str, before: Tally, tally: Tally) -> None:
            now = time.monotonic()
            if now - drawn[0] > _DRAW_EVERY_S:
                drawn[0] = now
                progress.update(task, completed=now - began, description=_so_far(where, before, tally), refresh=True)

        yield draw


def _lines(seconds: float) -> Show:
    began = time.monotonic()
    due = [began + _LINE_EVERY_S]

    def write(where: str, before: Tally, tally: Tally) -> None:
        now = time.monotonic()
        if now >= due[0]:
            due[0] = now + _LINE_EVERY_S
            sys.stderr.write(f"{now - began:.0f} of {seconds:.0f} s: {_so_far(where, before, tally)}\n")

    return write


def _so_far(where: str, before: Tally, now: Tally) -> str:
    engines, daemons = (before.engine_deaths + now.engine_deaths, before.daemon_deaths + now.daemon_deaths)
    violations = len(before.violations) + len(now.violations)
    return f"{where}: {engines} engine and {daemons} daemon deaths, {violations} violations"
