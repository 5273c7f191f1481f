"""Git for repositories that tests make: it sees no repository and no settings of the host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_USER = {
    **{f"GIT_{role}_NAME": "test" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "test@example.com" for role in ("AUTHOR", "COMMITTER")},
}


def git_environ() -> dict[str, str]:
    """Returns the environment without git's variables, by which a hook would lead all commands to its repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | _USER | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> None:
    """Runs a command of git in a folder. It must succeed."""
    done = subprocess.run(["git", *words], cwd=folder, env=git_environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def commit_all(folder: Path) -> None:
    """Makes a repository of a folder, with one commit of all that is in it."""
    for words in (("init",), ("add", "."), ("commit", "-m", "first")):
        git(folder, *words)
