"""Runs programs as other users. Their imports are done as root, who can read all files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from own_host import is_hidden

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
# Each test process has two users of its own, because a user has one folder in /tmp. Numbers up to 65,535 exist in every
# container.
NOBODY = 65534
MALLORY = 10_000 + 2 * os.getpid() % 50_000
ALICE = MALLORY + 1

_BECOME = """
import os, sys, logging
{imports}
os.setgroups({groups}); os.setgid({user}); os.setuid({user}); os.chdir("/")
logging.basicConfig(stream=sys.stdout, format="%(message)s", level="INFO")
{code}
"""


def command_as(user: int, imports: str, code: str, *arguments: str, groups: Sequence[int] = ()) -> list[str]:
    """Returns a command line that runs `code` as this user, who is also in these groups."""
    become = _BECOME.format(imports=imports, user=user, code=code, groups=list(groups))
    return [sys.executable, "-c", become, *arguments]


def environ_with(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a cron job, without pagetier's variables and XDG_RUNTIME_DIR, and `extra`."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PAGETIER_", "XDG_"))}
    return ours | dict(extra or {})


def output_as(
    user: int,
    imports: str,
    code: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    groups: Sequence[int] = (),
) -> tuple[int, str]:
    """Runs `code` to its end as this user; returns its exit code and its output."""
    done = subprocess.run(
        command_as(user, imports, code, *arguments, groups=groups),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        env=environ_with(environ),
    )
    return done.returncode, done.stdout


def folder_of(user: int, path: Path, mode: int = 0o755) -> Path:
    """Makes a folder that belongs to this user."""
    path.mkdir()
    path.chmod(mode)
    os.chown(path, user, user)
    return path


def skip_beside_a_default_socket() -> None:
    """Skips a test of what happens without /run/pagetier, if this host has that and it cannot be hidden."""
    if not is_hidden() and Path("/run/pagetier").exists():
        pytest.skip("this host has /run/pagetier, and namespaces that would hide it are refused")


@contextmanager
def fallback_of(user: int) -> Iterator[Path]:
    """Yields the folder of a user's socket in /tmp, which does not exist yet, and removes it at the end."""
    skip_beside_a_default_socket()
    path = Path(f"/tmp/pagetier-{user}")
    try:
        yield path
    finally:
        if path.is_symlink():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
