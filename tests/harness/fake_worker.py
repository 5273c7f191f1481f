"""Something else in the place of the disk tier's worker."""

from __future__ import annotations

from pathlib import Path

import pytest

_CODE = """
import os, socket, sys, time
if "pagetier.tiers.worker" in sys.orig_argv:
{}
"""


def impostor(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Workers that are started from now on do this instead; `there` is their end of the socket pair."""
    lines = ("there = socket.socket(fileno=int(sys.orig_argv[-1]))", *lines)
    (folder / "sitecustomize.py").write_text(_CODE.format("\n".join(f"    {line}" for line in lines)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
