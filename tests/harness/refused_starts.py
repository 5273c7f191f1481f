"""Daemons that must fail to start, and assertions that stored pages survive it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from eventually import PATIENCE_S
from keyed_pages import found, prompt, store
from pagetier.client import Client
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon

MAIN = "from pagetier.daemon.main import main; main()"
# Modules that are imported late, imported here while this process can still read all files.
AS_NOBODY = f"import asyncio, concurrent.futures.thread, os; {MAIN.replace('main()', 'os.setgroups([])')}; "
AS_NOBODY += "os.setgid(65534); os.setuid(65534); main()"


def with_shm(*options: str) -> list[str]:
    """Returns the beginning of a command that runs with a /dev/shm of its own."""
    mount = f"mount -t tmpfs -o {','.join(options)} tmpfs /dev/shm"
    return ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$0" "$@"']


OWN_SHM = with_shm("size=16m")
PAGES = 3
KEYS = prompt(7, PAGES)


def may_unshare() -> bool:
    try:
        return subprocess.run([*OWN_SHM, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


own_shm = pytest.mark.skipif(not may_unshare(), reason="this user may not mount a /dev/shm of its own")


class Ended(msgspec.Struct, frozen=True):
    """A daemon that has ended: its exit code and its output."""

    code: int
    text: str

    @property
    def reported(self) -> str:
        """The message of its last log line."""
        found = re.search(r'msg=("(?:[^"\\]|\\.)*")', self.text.splitlines()[-1])
        return str(json.loads(found[1])) if found else ""


def pagetierd(*arguments: str, code: str = MAIN, before: Sequence[str] = (), most_s: float = PATIENCE_S) -> Ended:
    """Runs a daemon that is expected to end soon. `before` is a command that runs it."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PAGETIER_")}
    command = [*before, sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, timeout=most_s, check=False
    )
    return Ended(done.returncode, done.stdout.decode())


def fill(daemon: RunningDaemon) -> None:
    """Stores the pages of KEYS."""
    with daemon.client() as client:
        assert store(client, KEYS).stored == PAGES


def still_serves(client: Client) -> bool:
    """Returns whether the pages of KEYS are present, and compares their content."""
    return found(client, KEYS) == PAGES


def shared_memory(name: str) -> list[str]:
    """Returns the segments under a name."""
    return sorted(path.name for path in Path("/dev/shm").glob(f"{name}.*"))


def arguments(daemon: RunningDaemon, *more: str) -> list[str]:
    """Returns the options of such a daemon, and `more`, which override them."""
    sizes = ["--arena-size", "16MiB", "--set", "arena.frame_size=64KiB"]
    return ["--name", daemon.name, "--socket", str(daemon.socket), *sizes, *more]


def refused(*arguments: str, code: str = MAIN, before: Sequence[str] = ()) -> str:
    """Returns the message of a daemon, which must end with exactly one error message.

    `before` is a command that runs it.
    """
    ended = pagetierd(*arguments, code=code, before=before)
    assert ended.code in (Exit.REFUSED, Exit.UNFIT), ended.text
    assert f"level=error name=pagetierd event=refused msg={json.dumps(ended.reported)} code={ended.code}" in ended.text
    assert "Traceback" not in ended.text
    return ended.reported
