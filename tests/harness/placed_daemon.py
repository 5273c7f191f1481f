"""A daemon in namespaces of its own, which the next daemon leaves for others."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eventually import PATIENCE_S
from in_namespaces import within
from other_users import ALICE
from process_states import children_of
from running_daemon import RunningDaemon

HERE: tuple[str, ...] = ()
OWN_PIDS = ("pid", "proc=")
PLACES = {
    "pid": OWN_PIDS,
    "nested": ("user", "pid", "proc="),
    "time": ("pid", "proc=", "time=1000000"),
    "hidepid-1": ("proc=hidepid=1,gid=4242", "no-ptrace"),
    "hidepid-2": ("proc=hidepid=2,gid=4242", "no-ptrace"),
    "hidepid-4": ("proc=hidepid=4", "no-ptrace"),
    "subset": ("proc=subset=pid",),
    "user": ("user",),
}


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process started, and those that they started."""
    children = children_of(pid)
    return [*children, *(each for child in children for each in descendants(child))]


class PlacedDaemon(RunningDaemon):
    """A daemon in namespaces of its own."""

    def move(self, *what: str) -> None:
        """Kills the daemon and starts the next one in other namespaces."""
        self.kill()
        self.follow(*what)

    def follow(self, *what: str) -> None:
        """Starts the next daemon in other namespaces."""
        self._before = within(*what)
        self.start()

    def kill(self) -> None:
        """Kills the daemon and waits until it is dead, not only the process that runs it."""
        pidfds = [os.pidfd_open(pid) for pid in descendants(self.pid)]
        super().kill()
        for pidfd in pidfds:
            select.select([pidfd], [], [], PATIENCE_S)
            os.close(pidfd)

    def enter(self) -> list[str]:
        """Returns a command that runs another one where the daemon runs."""
        return ["nsenter", "--target", str(self.inner), "--pid", "--mount"]

    @property
    def inner(self) -> int:
        """The PID of the daemon, seen from here."""
        return (descendants(self.pid) or [self.pid])[-1]

    def taken(self) -> list[int]:
        """Returns the taken slots, without asking the daemon."""
        return sorted(one.slot for one in self.observer().attachments_with_pins())


@contextmanager
def placed(*what: str) -> Iterator[PlacedDaemon]:
    """Yields a daemon without a quarantine, to which another user may attach."""
    daemon = PlacedDaemon("16MiB", "64KiB", "--constant", "store.quarantine=0.001", before=within(*what))
    daemon.config.write_text(f'[access]\nusers = [{ALICE}]\nsocket_mode = "0666"\n')
    Path(daemon.folder.name).chmod(0o755)
    with daemon:
        yield daemon
