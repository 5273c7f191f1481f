"""Tests that the kernel kills one process for lack of memory in its control group: the others continue."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from host_events.engine_group import EngineGroup
from memory_cgroup import Group, limited

LIMIT = 640 << 20
HOG = """
import sys
taken = []
for _ in sys.stdin:
    taken.append(b"x" * (1 << 20))
    print("taken", flush=True)
"""


def exhaust(group: Group) -> int:
    """Has a process take the memory of the group until the kernel has killed another process there.

    It takes a piece only on request: a process that took more on its own would cause more kills. The piece that caused
    the first kill can cause a second one, of this process, which is the largest: the kernel may look for the next
    victim before all memory of the first one is free.

    Returns:
        How many processes the kernel has killed for it.
    """
    command = [*group.before, sys.executable, "-c", HOG]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None and process.stdout is not None
        lives = True
        with suppress(BrokenPipeError):
            while lives and not group.kills:
                lives = False
                process.stdin.write(b"more\n")
                lives = bool(process.stdout.readline())
        if lives:
            process.kill()
        return 1 if lives else 2


def prefer(pid: int) -> None:
    """Makes this process the first that the kernel kills."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@pytest.mark.parametrize("victim", ["daemon", "worker", "engine"])
def test_a_process_killed_for_lack_of_memory_affects_no_other(tmp_path: Path, victim: str) -> None:
    with (
        limited(LIMIT) as group,
        DiskDaemon(256, "64MiB", "--set", "disk.write=through", before=group.before) as daemon,
        EngineGroup(daemon) as company,
    ):
        for seed in range(2):
            company.start_engine(seed, before=group.before)
        company.work(rounds=20)
        pids = {"daemon": daemon.pid, "worker": daemon.worker(), "engine": company.members[0].process.pid}
        prefer(pids[victim])
        kills = exhaust(group)
        if victim == "daemon":
            assert daemon.wait() == -9
            daemon.start()
        if victim == "engine":
            assert company.members.pop(0).wait_killed() == -9
            assert eventually(lambda: f"process {pids['engine']} (engine 0) has ended" in daemon.log.read_text())
        if victim == "worker":
            assert eventually(
                lambda: "killed by signal 9, maybe because memory ran out: see dmesg" in daemon.log.read_text()
            )
        assert eventually(daemon.disk_is_open), daemon.log.read_text()
        company.work(rounds=20)
        company.leave()
        daemon.until_written()
        assert group.kills == kills
