"""Tests what a refusal says of processes that cannot be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_host import host_files
from pagetier.daemon.host.host import Host
from pagetier.daemon.host.peer_credentials import Caller
from pagetier.daemon.host.refusals import why_unseen

ROOT_PROC = "22 21 0:20 / /proc rw,nosuid - proc proc rw"
HIDDEN = "90 22 0:50 / /proc rw,nosuid - proc proc rw,hidepid=invisible"


@pytest.mark.parametrize(
    ("pid", "mounts", "words"),
    [
        (0, ROOT_PROC, "a process of user 7 lives in a PID namespace that cannot be seen from here: give the daemon"),
        (21, ROOT_PROC, "process 21 of user 7 cannot be seen from here, or has ended"),
        (21, f"{ROOT_PROC}\n{HIDDEN}", "/proc is mounted with hidepid=invisible; mount it with gid=GROUP"),
        (21, f"{HIDDEN}\n{ROOT_PROC}", "cannot be seen from here, or has ended"),
    ],
)
def test_a_refusal_says_why_a_process_cannot_be_seen(pid: int, mounts: str, words: str, tmp_path: Path) -> None:
    host_files(tmp_path, {"proc/self/mountinfo": mounts})
    assert words in why_unseen(Caller(pid, 7, frozenset()), Host(tmp_path))
