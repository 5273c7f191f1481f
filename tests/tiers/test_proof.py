"""Tests the process that proves a data file. What it finds in files is tried in test_count.py and the crash tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from pagetier.tiers.disk.recovery import prove


def said(data: Path, parent: int) -> str:
    """Returns what the process says about a data file, with this process ID as its parent's."""
    command = [sys.executable, "-m", "pagetier.tiers.lmdb.proof", str(data), str(parent)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an LMDB environment."""
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    return tmp_path


def test_a_proof_whose_parent_is_gone_ends(folder: Path) -> None:
    data = folder / "data.mdb"
    assert said(data, os.getpid()) == ""
    assert said(data, os.getppid()) == "the parent process is gone"


def test_a_file_that_is_sound_is_proven_and_one_that_is_not_has_a_reason(folder: Path) -> None:
    assert prove([folder], 60.0) == [""]
    with (folder / "data.mdb").open("r+b") as data:
        data.truncate(5000)
    (why,) = prove([folder], 60.0)
    assert why and why != "the verifying process died"


def test_no_file_has_a_reason(tmp_path: Path) -> None:
    (why,) = prove([tmp_path], 60.0)
    assert "No such file" in why
