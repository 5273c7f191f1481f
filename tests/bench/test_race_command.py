"""Tests that a contest which fails or hangs is a line of the report, and that what it printed before is kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventually import PATIENCE_S, eventually
from process_states import is_alive
from race.__main__ import _lines_of, _remove_shared
from race.results import Absent, Figures

FIGURES = Figures("lookup", "a hit", "ms", "low", {"pagetier": [1.0]})
PRINTS = f"print({msgspec.json.encode(FIGURES).decode()!r}, flush=True); import os, sys, time; "


def lines_of(program: str, folder: Path, limit: float) -> list[Figures | Absent]:
    found = _lines_of("lookup", [sys.executable, "-c", PRINTS + program], folder, limit)
    assert all(isinstance(line, Figures | Absent) for line in found)
    return found  # type: ignore[return-value]


def test_a_contest_that_fails_says_why_and_keeps_what_it_printed(tmp_path: Path) -> None:
    kept, last = lines_of("sys.exit('the disk is gone')", tmp_path, PATIENCE_S)
    assert kept == FIGURES
    assert last == Absent("lookup", "the rest", "the contest ended with code 1: the disk is gone")


def test_a_contest_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its limit begins when it hangs: before that, its start may take any time."""
    started, communicate = tmp_path / "started", subprocess.Popen.communicate
    program = f"""
import subprocess
child = subprocess.Popen(["sleep", "1000"])
with open({f"{started}.new"!r}, "w") as file:
    file.write(str(child.pid))
os.rename(file.name, {str(started)!r})
time.sleep(1000)
"""

    def once_it_hangs(process: subprocess.Popen[bytes], *given: Any, **named: Any) -> Any:
        assert eventually(started.exists), "it has not started"
        return communicate(process, *given, **named)

    monkeypatch.setattr(subprocess.Popen, "communicate", once_it_hangs)
    kept, last = lines_of(program, tmp_path, 1.0)
    assert kept == FIGURES and isinstance(last, Absent) and "ended after 1 s" in last.reason
    assert eventually(lambda: not is_alive(int(started.read_text())))


def test_only_what_belongs_to_the_contest_is_removed_from_shared_memory(tmp_path: Path) -> None:
    mine, other = (Path("/dev/shm", f"race-files-{tmp_path.name}-{name}") for name in ("mine", "x"))
    other = other.with_name(other.name.replace(tmp_path.name, "another"))
    try:
        mine.mkdir()
        (mine / "page").touch()
        other.touch()
        _remove_shared(tmp_path.name)
        assert not mine.exists() and other.exists()
    finally:
        other.unlink()
