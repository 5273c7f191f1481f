"""A path on a command line."""

from __future__ import annotations

import os
from pathlib import Path

import click


class SomePath(click.Path):
    """A path that was given: an empty one, as an unset variable of a script leaves it, would be the current folder."""

    def __init__(self, *, readable: bool = True) -> None:
        super().__init__(path_type=Path, readable=readable)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuses what is empty as a wrong use."""
        if value == "":
            self.fail("an empty value names no file.", param, ctx)
        return super().convert(value, param, ctx)
