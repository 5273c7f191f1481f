"""Tests that the kernel kills one process for lack of memory in its control group: the others continue."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon_with_disk import is_open, until_written, worker_of
from host_events.engine_group import EngineGroup
from memory_cgroup import Group, limited
from running_daemon import RunningDaemon, eventually

LIMIT = 640 << 20
KILLED_S = 30.0


@contextmanager
def hog(group: Group) -> Iterator[None]:
    """Runs a process that takes all of the group's memory, until the end of the block."""
    command = [*group.before, sys.executable, str(Path(__file__).with_name("hog.py"))]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def prefer(pid: int) -> None:
    """Makes this process the first that the kernel kills."""
    Path(f"/proc/{pid}/oom_score_adj").write_text("1000")


@pytest.mark.parametrize("victim", ["daemon", "worker", "engine"])
def test_a_process_killed_for_lack_of_memory_affects_no_other(tmp_path: Path, victim: str) -> None:
    flags = ("--disk-path", str(tmp_path / "disk"), "--disk-size", "64MiB", "--disk-write", "through")
    with (
        limited(LIMIT) as group,
        RunningDaemon("16MiB", "64KiB", *flags, before=group.before) as daemon,
        EngineGroup(daemon) as company,
    ):
        assert eventually(lambda: is_open(daemon), 20), daemon.log.read_text()
        for seed in range(2):
            company.start_engine(seed, before=group.before)
        company.work(rounds=20)
        assert daemon.process is not None
        pids = {"daemon": daemon.process.pid, "worker": worker_of(daemon), "engine": company.members[0].process.pid}
        prefer(pids[victim])
        with hog(group):
            assert eventually(lambda: group.kills > 0, KILLED_S)
        if victim == "daemon":
            assert daemon.wait() == -9
            daemon.start()
        if victim == "engine":
            assert company.members.pop(0).wait_killed() == -9
            assert eventually(lambda: f"process {pids['engine']} (engine 0) ended" in daemon.log.read_text())
        if victim == "worker":
            assert eventually(
                lambda: "killed by signal 9, maybe because memory ran out: see dmesg" in daemon.log.read_text()
            )
        assert eventually(lambda: is_open(daemon), 20), daemon.log.read_text()
        company.work(rounds=20)
        served = company.leave()
        assert all((one.wrong, one.missed) == (0, 0) for one in served), (served, daemon.log.read_text())
        until_written(daemon)
        assert group.kills == 1
