"""Which changes `.ci/packaging_changed` takes for changes of the wheels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "packaging_changed"
FILES = ("setup.py", "shm/core/page.h", "daemon/server.py", "tests/test_page.py")


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Returns a repository with one commit, which is tagged "base"."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first\n")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "base")
    return tmp_path


def changed(repository: Path, base: str = "base") -> tuple[int, str]:
    done = subprocess.run(["sh", PROGRAM, base], cwd=repository, check=False, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_other_changes_of_modules_and_tests_do_not_count(repository: Path) -> None:
    for name in FILES[2:]:
        (repository / name).write_text("second\n")
    git(repository, "commit", "--all", "-m", "second")
    assert changed(repository) == (1, "")


@pytest.mark.parametrize("name", FILES[:2])
def test_the_build_and_the_core_count(repository: Path, name: str) -> None:
    (repository / name).write_text("second\n")
    assert changed(repository) == (0, f"{name}\n")


def test_a_module_that_moves_counts(repository: Path) -> None:
    git(repository, "mv", "daemon/server.py", "daemon/listener.py")
    git(repository, "commit", "-m", "second")
    assert changed(repository) == (0, "daemon/listener.py\ndaemon/server.py\n")


def test_a_commit_that_is_not_known_counts(repository: Path) -> None:
    status, output = changed(repository, "0123456789")
    assert status == 0 and "is not known here" in output
