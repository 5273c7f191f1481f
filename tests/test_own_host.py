"""Tests that a test cannot see what else is on this machine."""

from __future__ import annotations

import locale
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventually import eventually
from hostile_host import PLACES, REFUSED
from own_host import ROOT, is_hidden
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.config.settings_file import load_settings
from pagetier.shm.socket_path import default_socket

ROOM = 1 << 30
hidden = pytest.mark.skipif(not is_hidden(), reason="this user may not make namespaces here")


def test_no_variable_of_the_host_is_seen() -> None:
    removed = ("PAGETIER_", "XDG_", "LC_", "NOTIFY_", "PYTHONUNB", "GIT_DIR", "GIT_INDEX_FILE")
    assert not [name for name in os.environ if name.startswith(removed)]
    assert (os.environ["HOME"], locale.getencoding().lower()) == (str(ROOT / ".cache/home"), "utf-8")
    assert os.environ["LOGNAME"] == str(os.geteuid())


def test_the_umask_of_the_host_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@hidden
def test_no_file_of_the_host_is_seen() -> None:
    assert not Path("/run/pagetier").exists() and load_settings() == CopySettings()
    assert [path for path in Path("/dev/shm").iterdir() if not path.name.startswith("pagetier-test-")] == []


@hidden
def test_the_host_leaves_room() -> None:
    assert min(shutil.disk_usage(folder).free for folder in ("/tmp", "/dev/shm")) > ROOM


@hidden
def test_a_default_socket_is_as_on_an_empty_host() -> None:
    assert default_socket() == Path(f"/tmp/pagetier-{os.getuid()}" if os.getuid() else "/run/pagetier", "pagetier.sock")


@hidden
def test_only_what_python_needs_of_tmp_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    program = "import os, own_host, sys; own_host.have_own_host(); print(*map(os.path.exists, sys.argv[1:]))"
    python = str(tmp_path / "venv/bin/python")
    command = [python, "-c", program, python, str(tmp_path / "other")]
    harness = {"PYTHONPATH": str(ROOT / "tests/harness")}
    seen = subprocess.run(command, env=os.environ | harness, capture_output=True, text=True, check=True)
    assert seen.stdout == "True False\n"


def test_a_killed_run_leaves_no_folder() -> None:
    program = "import own_host, os; print(own_host._own_temporary(), flush=True); os.kill(os.getpid(), 9)"
    harness = {"PYTHONPATH": str(ROOT / "tests/harness")}
    command = [sys.executable, "-c", program]
    killed = subprocess.run(command, env=os.environ | harness, capture_output=True, text=True, check=False)
    folder = Path(killed.stdout.strip())
    assert (killed.returncode, folder.name[:6]) == (-9, "suite-")
    assert eventually(lambda: not folder.exists())


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_host_is_not_seen_either(place: str) -> None:
    command = [sys.executable, "tests/harness/hostile_host.py", place, "--", sys.executable, "-m", "pytest", "-n", "0"]
    done = subprocess.run(
        [*command, "-o", "cache_dir=/tmp/cache", __file__, "-k", "not hostile"],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == REFUSED:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0 and "7 passed" in done.stdout, done.stdout + done.stderr
