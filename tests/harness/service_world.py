"""The service as an administrator has it: installed, configured, told what to do, and looked at."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from running_daemon import eventually
from systemd_machine import PYTHON, Machine

UNIT = "pagetierd"
CONFIG = "/etc/pagetier/pagetierd.toml"
LOG = "/var/log/pagetierd.log"
SOCKET = "/run/pagetier/pagetier.sock"
PAGES = 40
SMALL = '[arena]\nsize = "16MiB"\nframe_size = "64KiB"\n[access]\ngroups = ["pagetier"]\n'
DISK = SMALL + '[disk]\npath = "/var/lib/pagetier"\nsize = "64MiB"\nenvironments = 2\n'
WHERE_TESTS_ARE = """[Service]
Environment=PYTHONPATH=/opt/pagetier/src:/opt/site LD_LIBRARY_PATH=/opt/python/lib
StandardOutput=append:{log}
StandardError=append:{log}
"""
_SOON_S = 15.0


class Told(msgspec.Struct, frozen=True):
    """What an engine said last. hits: pages that it has just loaded; mapped: whether the arena is in its memory."""

    rounds: int
    hits: int
    wrong: int
    stored: int
    attached: bool
    mapped: bool


class Engine:
    """An engine of another user, at work all the time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until(self, what: Callable[[Told], bool], why: str) -> Told:
        """What it says when that is so. No page may ever be wrong."""
        told = None

        def is_so() -> bool:
            nonlocal told
            told = self._next()
            return what(told)

        assert eventually(is_so, _SOON_S), f"{why}: {told}"
        assert told is not None
        return told

    def now(self) -> Told:
        """What it says from now on: what it said before is read and forgotten."""
        first = self._next()
        return self.until(lambda told: told.rounds > first.rounds + 2, "an engine stands still")

    def _next(self) -> Told:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"an engine ended: {self._process.poll()}"
        told = msgspec.convert(json.loads(line), Told)
        assert told.wrong == 0
        return told


class World:
    """`pagetierd.service` in a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def install(self) -> None:
        """As the manual says, with an engine's user beside it."""
        do = self.machine.do
        told = do("pagetier", "unit", "install")
        assert "systemctl enable --now pagetierd" in told
        self.machine.write("/etc/sysusers.d/alice.conf", 'u alice - "an engine"\nm alice pagetier\nu bob - "nobody"\n')
        do("systemd-sysusers", "/etc/sysusers.d/pagetier.conf", "/etc/sysusers.d/alice.conf")
        self.drop_in(WHERE_TESTS_ARE.format(log=LOG), name="test")
        for unit in ("pagetierd-memory", "pagetierd-give-back"):
            self.drop_in(WHERE_TESTS_ARE.format(log="/var/log/memory.log"), unit=unit, name="test")

    def drop_in(self, text: str, unit: str = UNIT, name: str = "case") -> None:
        """Other lines for a unit."""
        self.machine.write(f"/etc/systemd/system/{unit}.service.d/{name}.conf", text)
        self.machine.do("systemctl", "daemon-reload")

    def begin(self) -> None:
        """As after the installation."""
        self.machine.write(CONFIG, SMALL)
        self.machine.write(LOG, "")
        self.machine.do("sh", "-c", "rm -rf /var/lib/pagetier /etc/systemd/system/*/case.conf")
        self.machine.do("systemctl", "daemon-reload")

    def end(self) -> None:
        """A stop, after which nothing may be left."""
        self.machine.run("systemctl", "kill", "--signal=CONT", UNIT)
        self.machine.do("systemctl", "stop", UNIT)
        self.machine.run("systemctl", "reset-failed", UNIT)
        left = self.segments()
        self.machine.do("sh", "-c", "rm -f /dev/shm/pagetier.*; umount /var/lib/pagetier 2>&1 || true")
        assert left == [], self.log()
        assert "Traceback" not in self.log(), self.log()

    def systemctl(self, *words: str) -> None:
        """Something that must succeed."""
        done = self.machine.run("systemctl", *words, UNIT)
        assert done.returncode == 0, f"{words}: {done.stderr}{self.log()}"

    def start(self) -> None:
        """Until it serves, and the unit behind it is there, too: that comes a moment later."""
        self.systemctl("start")
        self.memory_is_kept()

    def memory_is_kept(self, of: str = "") -> None:
        """Waits for the units that stand for it, which start a moment after the daemon did, or failed."""
        units = (f"pagetierd-memory{of}", f"pagetierd-give-back{of}")
        self.soon(lambda: all(self.show("ActiveState", unit) == "active" for unit in units), "no memory")

    def show(self, name: str, unit: str = UNIT) -> str:
        """A property of the unit."""
        return self.machine.show(unit, name)

    def log(self) -> str:
        """What the daemons logged since the test began."""
        return self.machine.read(LOG)

    def stats(self, user: str = "") -> Any:
        """`pagetier stats`."""
        return json.loads(self.machine.do("pagetier", "stats", "--json", user=user))

    def segments(self) -> list[str]:
        """What is in shared memory under the daemon's name."""
        return [name for name in self.machine.names("/dev/shm") if name.startswith("pagetier")]

    def soon(self, what: Callable[[], bool], why: str) -> None:
        """Waits for it."""
        assert eventually(what, _SOON_S), f"{why}: {self.log()}"

    @contextmanager
    def engine(self, pages: int = PAGES, prompts: int = 1) -> Iterator[Engine]:
        """One that works until the end of the block, on so many prompts in turn."""
        command = (PYTHON, "-u", "/opt/pagetier/tests/systemd/engine_main.py", str(pages), str(prompts))
        with self.machine.begin("sh", "-c", 'echo $$; exec "$@"', "sh", *command, user="alice") as process:
            assert process.stdout is not None
            pid = process.stdout.readline().strip()
            try:
                yield Engine(process)
            finally:
                self.machine.run("kill", "-KILL", pid)

    def with_pages(self, engine: Engine, pages: int = PAGES) -> None:
        """Waits until the engine finds all its pages."""
        engine.until(lambda told: told.hits == pages and told.attached, "its pages are not there")
