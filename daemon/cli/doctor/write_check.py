"""Checks that a page can be stored and loaded."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pagetier.daemon.cli.doctor.result import Level, Result

_SELFTEST: Final = "pagetier.client.cli.selftest"  # as text, since the daemon does not import the client


def check_write(socket: Path) -> Iterator[Result]:
    """Stores, matches, loads and drops a page as an engine of this user would, up to the first step that fails."""
    for found in importlib.import_module(_SELFTEST).run_steps(socket):
        yield Result(Level.PROBLEM if found.failed else Level.OK, f"write: {found.step}", found.text)
