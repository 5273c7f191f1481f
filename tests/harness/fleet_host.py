"""Hosts of a fleet: each a daemon and a client of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from daemon_turns import PUBLISHED, Turns
from eventually import eventually
from pagetier.client import Client, Keys
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.workers.supervisor import FLEET_WORKER
from running_daemon import RunningDaemon, namespace

Pages = npt.NDArray[np.uint8]
OPEN_S = 60.0
PATIENT = ("--set", "remote.timeout=60s", "--set", "remote.ask_timeout=5s")
"""For tests in which the fleet answers: a busy machine may take longer than the defaults."""
_WRITTEN_S = 60.0


class Load(msgspec.Struct, frozen=True, eq=False):
    """A load: how many pages it copied to `out`."""

    pages: int
    out: Pages


def keys_of(name: str, pages: int) -> Keys:
    return namespace(lora=name).keys(range(16 * pages))


def pages_of(count: int, size: int, seed: int = 1) -> Pages:
    return np.random.default_rng([seed, size]).integers(0, 256, (count, size), np.uint8)


class FleetHost:
    """A daemon with a fleet, and a client."""

    def __init__(
        self,
        url: str,
        stack: ExitStack,
        *more: str,
        arena: str = "16MiB",
        before: Sequence[str] = (),
        config: str = "",
    ) -> None:
        """Starts the daemon, with a configuration file for `reload()` if `config` has its text."""
        self._turns = stack.enter_context(Turns())
        flags, before = ("--set", f"remote.url={url}", *more), (*before, *self._turns.before)
        self.daemon = RunningDaemon(arena, "64KiB", *flags, before=before)
        if config:
            self.daemon.config.write_text(config)
        stack.enter_context(self.daemon)
        assert eventually(lambda: self.report.standing == "open", OPEN_S), self.daemon.log.read_text()
        self.client: Client = stack.enter_context(self.daemon.client(timeout=OPEN_S))
        self._shared = 0

    @property
    def report(self) -> FleetStatus:
        return self.daemon.snapshot().fleet

    def fresh_report(self) -> FleetStatus:
        """Returns a report that the daemon has published since the call, in this network namespace."""
        self._turns.pass_by(PUBLISHED)
        return self.report

    @property
    def worker(self) -> int:
        return next(slot.pid for slot in self.daemon.slots() if slot.name == FLEET_WORKER)

    @property
    def asks(self) -> bool:
        """Whether the breaker is closed."""
        session = self.client.session
        return session is not None and session.asks_fleet

    def share(self, name: str, pages: Pages) -> None:
        """Stores pages and waits until the fleet has them."""
        assert self.client.store(keys_of(name, len(pages)), pages).stored == len(pages)
        self.wait_shared(len(pages))

    def wait_shared(self, pages: int) -> None:
        """Waits until the fleet has this many pages of the host more than at the last call."""
        self._shared += pages
        assert eventually(lambda: self.report.written == self._shared, _WRITTEN_S), self.report

    def load(self, name: str, count: int, size: int, timeout: float = 60.0) -> Load:
        out = np.zeros((count, size), np.uint8)
        with self.client.match(keys_of(name, count)) as match:
            return Load(self.client.load(match, out, timeout=timeout), out)


def key_file(folder: Path, byte: bytes = b"k") -> Path:
    """Returns a file with a fleet key."""
    path = folder / f"{byte.hex()}.key"
    path.write_bytes(32 * byte)
    path.chmod(0o400)
    return path
