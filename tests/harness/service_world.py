"""The systemd service as an administrator uses it: installed, configured, controlled and observed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from eventually import eventually
from systemd_machine import PYTHON, Machine

UNIT = "pagetierd"
CONFIG = "/etc/pagetier/pagetierd.toml"
LOG = "/var/log/pagetierd.log"
SOCKET = "/run/pagetier/pagetier.sock"
PAGES = 40
SMALL = '[arena]\nsize = "16MiB"\nframe_size = "64KiB"\n[access]\ngroups = ["pagetier"]\n'
DISK = SMALL + '[disk]\npath = "/var/lib/pagetier"\nsize = "64MiB"\n'
WHERE_TESTS_ARE = """[Service]
Environment=PYTHONPATH=/opt/pagetier/src:/opt/site LD_LIBRARY_PATH=/opt/python/lib
StandardOutput=append:{log}
StandardError=append:{log}
"""
_SOON_S = 60.0


class Reported(msgspec.Struct, frozen=True):
    """The last state that an engine reported.

    Attributes:
        hits: The pages that it has just loaded.
        mapped: Whether the arena is mapped into its memory.
    """

    rounds: int
    hits: int
    wrong: int
    stored: int
    attached: bool
    mapped: bool


class ServiceEngine:
    """An engine of another user that stores and loads all the time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until(self, what: Callable[[Reported], bool], why: str) -> Reported:
        """Returns the first report for which a condition is true. Asserts that no page has wrong content."""
        report = None

        def is_so() -> bool:
            nonlocal report
            report = self._next()
            return what(report)

        assert eventually(is_so, _SOON_S), f"{why}: {report}"
        assert report is not None
        return report

    def attached(self) -> Reported:
        """Returns a report after the engine has attached again."""
        self.until(lambda report: report.attached, "the engine did not attach again")
        return self.now()

    def now(self) -> Reported:
        """Returns a new report, after discarding the earlier ones."""
        first = self._next()
        return self.until(lambda report: report.rounds > first.rounds + 2, "an engine makes no progress")

    def _next(self) -> Reported:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"an engine ended: {self._process.poll()}"
        report = msgspec.convert(json.loads(line), Reported)
        assert report.wrong == 0
        return report


class ServiceWorld:
    """`pagetierd.service` in a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def install(self) -> None:
        """Installs the service as the manual says, and creates users for engines."""
        do = self.machine.do
        output = do("pagetier", "unit", "install")
        assert "systemctl enable --now pagetierd" in output
        self.machine.write(
            "/etc/sysusers.d/alice.conf", 'u alice - "an engine"\nm alice pagetier\nu bob - "another user"\n'
        )
        do("systemd-sysusers", "/etc/sysusers.d/pagetier.conf", "/etc/sysusers.d/alice.conf")
        self.drop_in(WHERE_TESTS_ARE.format(log=LOG), name="test")
        for unit in ("pagetierd-memory", "pagetierd-release-memory"):
            self.drop_in(WHERE_TESTS_ARE.format(log="/var/log/memory.log"), unit=unit, name="test")

    def drop_in(self, text: str, unit: str = UNIT, name: str = "case") -> None:
        """Adds a drop-in to a unit."""
        self.machine.write(f"/etc/systemd/system/{unit}.service.d/{name}.conf", text)
        self.machine.do("systemctl", "daemon-reload")

    def begin(self) -> None:
        """Restores the state after the installation."""
        self.machine.write(CONFIG, SMALL)
        self.machine.write(LOG, "")
        self.machine.do("sh", "-c", "rm -rf /var/lib/pagetier /etc/systemd/system/*/case.conf")
        self.machine.do("systemctl", "daemon-reload")

    def end(self) -> None:
        """Stops the service and asserts that nothing is left."""
        self.machine.run("systemctl", "kill", "--signal=CONT", UNIT)
        self.machine.do("systemctl", "stop", UNIT)
        self.machine.run("systemctl", "reset-failed", UNIT)
        left = self.segments()
        self.machine.do("sh", "-c", "rm -f /dev/shm/pagetier.*; umount /var/lib/pagetier 2>&1 || true")
        assert left == [], self.log()
        assert "Traceback" not in self.log(), self.log()

    def systemctl(self, *words: str) -> None:
        """Runs systemctl, which must succeed."""
        done = self.machine.run("systemctl", *words, UNIT)
        assert done.returncode == 0, f"{words}: {done.stderr}{self.log()}"

    def signal(self, name: str) -> None:
        """Sends a signal to the daemon."""
        self.machine.do("systemctl", "kill", f"--signal={name}", "--kill-who=main", UNIT)

    def is_restarted(self) -> None:
        """Waits until systemd has restarted the daemon once."""
        self.soon(lambda: (self.show("NRestarts"), self.show("ActiveState")) == ("1", "active"), "no restart")

    def start(self) -> None:
        """Starts the service and waits until it serves and its helper units, which start a moment later, are active."""
        self.systemctl("start")
        self.memory_is_kept()

    def memory_is_kept(self, of: str = "") -> None:
        """Waits for the units that keep the memory, which become active a moment after the daemon started or failed."""
        units = (f"pagetierd-memory{of}", f"pagetierd-release-memory{of}")
        self.soon(
            lambda: all(self.show("ActiveState", unit) == "active" for unit in units),
            "a unit that keeps the memory is not active",
        )

    def show(self, name: str, unit: str = UNIT) -> str:
        """Returns a property of the unit."""
        return self.machine.show(unit, name)

    def log(self) -> str:
        """Returns the daemons' log since the test began."""
        return self.machine.read(LOG)

    def stats(self, user: str = "") -> Any:
        """Returns the output of `pagetier stats`."""
        return json.loads(self.machine.do("pagetier", "stats", "--json", user=user))

    def segments(self) -> list[str]:
        """Returns the names in shared memory that belong to the daemon."""
        return [name for name in self.machine.names("/dev/shm") if name.startswith("pagetier")]

    def soon(self, what: Callable[[], bool], why: str) -> None:
        """Waits until a condition becomes true."""
        assert eventually(what, _SOON_S), f"{why}: {self.log()}"

    @contextmanager
    def engine(self, pages: int = PAGES, prompts: int = 1) -> Iterator[ServiceEngine]:
        """Yields an engine that works until the end of the block, with this number of prompts in turn."""
        command = (PYTHON, "-u", "/opt/pagetier/tests/systemd/engine_main.py", str(pages), str(prompts))
        with self.machine.begin("sh", "-c", 'echo $$; exec "$@"', "sh", *command, user="alice") as process:
            assert process.stdout is not None
            pid = process.stdout.readline().strip()
            try:
                yield ServiceEngine(process)
            finally:
                self.machine.run("kill", "-KILL", pid)

    @contextmanager
    def full_engine(self) -> Iterator[ServiceEngine]:
        """Yields an engine that finds all of its pages."""
        with self.engine() as engine:
            engine.until(lambda report: report.hits == PAGES and report.attached, "the engine does not find its pages")
            yield engine
