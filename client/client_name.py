"""What administrators see of a client."""

import sys
from pathlib import Path


def shown_name(name: str) -> str:
    """The name, or that of the program; without what can not be shown. It may hold anything, also what has no UTF-8."""
    return "".join(letter if letter.isprintable() else "?" for letter in name or _program())


def _program() -> str:
    return Path((sys.argv or [""])[0] or sys.executable).name
