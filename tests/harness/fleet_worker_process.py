"""A real worker process of a fleet, and a test in the daemon's place."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from anonymous_segments import DAY_NS
from eventually import PATIENCE_S, Stopwatch
from index_with_disk import Place, ints, key, u64
from page_reservations import reserve
from pagetier.shm._core import DISK_DEVICES, HISTORY_BYTES, Pins, ReserveOutcome, TierFlag
from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.page_rows import PAGES_TO_READ, PAGES_TO_WRITE, PageToRead, PageToWrite
from pagetier.shm.process import Process
from pagetier.shm.protocol import Space
from pagetier.tiers.worker_protocol import (
    WORKER_BUILD,
    Command,
    FleetOptions,
    Read,
    Report,
    ServeFleet,
    Write,
    decode_report,
)

_R = TypeVar("_R", bound=Report)
SPACE = Space(b"s" * 32, "space", 16)
_HARNESS = str(Path(__file__).parent)


class FleetWorkerProcess:
    """The process, the index that it serves, and the socket to it."""

    def __init__(self, options: FleetOptions) -> None:
        self.place = Place()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "pagetier.tiers.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": _HARNESS},
            )
        process = Process.of(self.child.pid)
        self.slot = self.place.owner.attach(process.pid, os.geteuid(), process.started, 0, "fleet")
        self._unpacker = Unpacker()
        self._reports: list[Report] = []
        command = ServeFleet(self.slot, options, build=WORKER_BUILD)
        socket.send_fds(self._socket, [pack(command)], self.place.memory.descriptors)

    def send(self, command: Command) -> None:
        self._socket.sendall(pack(command))

    def expect(self, kind: type[_R], seconds: float = PATIENCE_S) -> _R:
        """Returns the next report of this kind; others before it are dropped."""
        watch = Stopwatch()
        while not isinstance(report := self.next(seconds - watch.seconds), kind):
            continue
        return report

    def next(self, seconds: float = PATIENCE_S) -> Report:
        """Returns the next report."""
        watch = Stopwatch()
        while not self._reports:
            ready, _, _ = select.select([self._socket], [], [], max(0.0, seconds - watch.seconds))
            data = self._socket.recv(1 << 18) if ready else b""
            assert data, "no report came"
            self._reports += [decode_report(body) for body in self._unpacker.feed(data)]
        return self._reports.pop(0)

    def identity(self, name: str) -> tuple[bytes, bytes]:
        """Returns the entry and the serial of a page in memory."""
        with self.place.session.match(Pins, None, key(name)) as pins:
            return pins.entries, pins.serials

    def write(self, number: int, *names: str, size: int = 4096) -> None:
        """Sends a Write of pages that are in memory."""
        self.send_write(number, [self.identity(name) for name in names], *names, size=size)

    def send_write(self, number: int, identities: Sequence[tuple[bytes, bytes]], *names: str, size: int = 4096) -> None:
        """Sends a Write of pages with these entries and serials."""
        rows = (
            PageToWrite(key(name), bytes(HISTORY_BYTES), size, ints(serial, 8)[0], 0, ints(entry, 4)[0], 0, 0)
            for name, (entry, serial) in zip(names, identities, strict=True)
        )
        self.send(Write(number, b"", PAGES_TO_WRITE.pack(rows), {0: SPACE}))

    def read(self, number: int, *names: str, size: int = 4096) -> None:
        """Grants the worker frames for pages, and sends a Read of them."""
        keys, sizes = b"".join(map(key, names)), u64(*[size] * len(names))
        outcomes, entries, serials = reserve(self.place.owner, self.slot, self.place.space, 0, 1, DAY_NS, keys, sizes)
        assert set(outcomes) == {ReserveOutcome.GRANTED}
        rows = (
            PageToRead(key(name), size, serial, entry, 0, outcome, DISK_DEVICES)
            for name, outcome, entry, serial in zip(names, outcomes, ints(entries, 4), ints(serials, 8), strict=True)
        )
        self.send(Read(number, PAGES_TO_READ.pack(rows), {0: SPACE}))

    def forget(self) -> None:
        """Evicts all pages from memory."""
        self.place.owner.flush(-1, TierFlag.BOTH)

    def kill(self) -> None:
        self._socket.close()
        self.child.kill()
        self.child.wait()
