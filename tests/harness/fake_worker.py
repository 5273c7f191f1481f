"""Programs that run in place of the disk tier's worker."""

from __future__ import annotations

from pathlib import Path

import pytest

_CODE = """
import os, socket, sys, time
if "pagetier.tiers.worker" in sys.orig_argv:
{}
"""


def impostor(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Makes workers that start from now on run these lines. `there` is their end of the socket pair."""
    lines = ("there = socket.socket(fileno=int(sys.orig_argv[-1]))", *lines)
    (folder / "sitecustomize.py").write_text(_CODE.format("\n".join(f"    {line}" for line in lines)))
    monkeypatch.setenv("PYTHONPATH", str(folder))
