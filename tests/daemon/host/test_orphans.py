"""A daemon that is PID 1 of a container reaps processes whose parents have ended."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from disk_daemon import DiskDaemon
from eventually import eventually
from other_users import as_root
from pagetier.daemon.host import orphans
from pagetier.daemon.host.orphans import Orphans
from pagetier.shm.process import Process
from process_states import arguments_of, children_of

AS_INIT = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
SLEEPER = "98765"  # the argument by which the orphan is found


class InitDaemon(DiskDaemon):
    """A daemon with a disk that is PID 1 of its own namespace."""

    def __init__(self) -> None:
        super().__init__(before=AS_INIT)

    @property
    def pid(self) -> int:
        """The PID of the daemon, outside of its namespace."""
        return children_of(super().pid)[0]

    def findings(self) -> list[str]:
        """Returns nothing: the daemon refuses observers from outside of its namespace."""
        return []

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the daemon."""
        os.kill(self.pid, number)


@pytest.fixture
def daemon() -> Iterator[InitDaemon]:
    with InitDaemon() as daemon:
        yield daemon


def child_with(daemon: InitDaemon, argument: str) -> int:
    """Returns the child of the daemon that has this argument, as soon as there is one."""
    found: list[int] = []

    def finds() -> bool:
        found[:] = [pid for pid in children_of(daemon.pid) if argument in arguments_of(pid)]
        return bool(found)

    assert eventually(finds), daemon.log.read_text()
    return found[0]


@as_root
def test_orphans_are_reaped_and_exit_codes_of_workers_are_known(daemon: InitDaemon) -> None:
    inside = ["nsenter", "--target", str(daemon.pid), "--pid", "--", "sh", "-c", f"sleep {SLEEPER} >/dev/null 2>&1 &"]
    subprocess.run(inside, check=True)
    orphan = child_with(daemon, SLEEPER)
    for restart in range(1, 4):
        os.kill(child_with(daemon, "pagetier.tiers.worker"), signal.SIGSEGV)
        daemon.wait_open(restart)
    os.kill(orphan, signal.SIGKILL)
    assert eventually(lambda: orphan not in children_of(daemon.pid))
    assert len(daemon.lines("its worker was killed by signal 11")) == 3


def test_without_descriptors_an_orphan_is_reaped_by_a_later_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> Process:
        raise OSError(24, "Too many open files")

    with subprocess.Popen(["true"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(orphans, "_INIT", os.getpid())
        reaper = Orphans()
        with monkeypatch.context() as short:
            short.setattr(Process, "of", refuse)
            reaper.reap()
        reaper.reap()
        reaper.reap()
        with pytest.raises(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
