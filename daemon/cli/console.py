"""Where tables and the screen of `pagetier top` are written: plainly, with colours where there is a terminal."""

from __future__ import annotations

import os

from rich.console import Console


def console_for_people(width: int | None = None) -> Console:
    """On stdout. width: None for the terminal's; one of 0, as $COLUMNS and $LINES may say, is none, as for a shell."""
    for name in ("COLUMNS", "LINES"):
        if os.environ.get(name, "").strip("0") == "":
            os.environ.pop(name, None)
    return Console(width=width, highlight=False, markup=False, emoji=False)
