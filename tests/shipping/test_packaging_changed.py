"""Which changes `.ci/packaging_changed` takes for changes of the wheels."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from own_git import commit_all, git, git_environ

PROGRAM = Path(__file__).parents[2] / ".ci" / "packaging_changed"
FILES = ("setup.py", "shm/core/page.h", "daemon/server.py", "tests/test_page.py")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Returns a repository with one commit, which is tagged "base"."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first\n")
    commit_all(tmp_path)
    git(tmp_path, "tag", "base")
    return tmp_path


def changed(repository: Path, base: str = "base") -> tuple[int, str]:
    command = ["sh", str(PROGRAM), base]
    done = subprocess.run(command, cwd=repository, env=git_environ(), check=False, capture_output=True, text=True)
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


def test_a_repository_of_a_test_is_its_own_also_in_a_hook(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that runs the tests has variables that lead git to the repository of the hook."""
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    commit_all(other)
    assert (other / ".git").is_dir()
    assert changed(repository) == (1, "")
