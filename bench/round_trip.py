"""Measures the round trip of small reservations, relative to a bare asyncio echo on the same kind of socket."""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np

from daemon_setup import Stage, settle
from measure import REPORTED, Result, at_most, main, time_of
from pagetier.client import Client, Keys, Namespace
from pagetier.client.reservation import Reservation
from pagetier.shm._core import KEY_BYTES

ROUNDS = 30
CALLS = 50  # of each side a round, so that both find their code in the caches
FRAME = 4 << 10
GOALS = {1: at_most(2), 64: at_most(3.5)}
SPACE = Namespace(model="bench", dtype="none", page_tokens=1)


class Echo(asyncio.Protocol):
    """Answers with the bytes that it received."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers."""
        self._transport.write(data)


async def serve_echo(path: str) -> None:
    """Serves until the process is ended."""
    await asyncio.get_running_loop().create_unix_server(Echo, path)
    print(flush=True)
    await asyncio.Event().wait()


class EchoServer(msgspec.Struct, frozen=True):
    """A connection to an echo server in another process."""

    connection: socket.socket
    pid: int

    def bounce(self, message: bytes) -> None:
        """Sends a message and waits until all of it is back."""
        self.connection.sendall(message)
        left = len(message)
        while left:
            left -= len(self.connection.recv(left))


@contextmanager
def echo_server() -> Iterator[EchoServer]:
    """Runs an echo server while the context lasts."""
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as folder:
        path = str(Path(folder, "echo.sock"))
        server = subprocess.Popen([sys.executable, __file__, "--echo", path], stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None and server.stdout.readline()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(path)
                yield EchoServer(connection, server.pid)
        finally:
            server.kill()
            server.wait()


class Side:
    """One kind of call: its times, and the CPU time of this thread and of the process that answers."""

    def __init__(self, call: Callable[[], object], pid: int) -> None:
        self._call, self._pid = call, pid
        self.times: list[float] = []
        self._processor = 0.0

    def run(self) -> None:
        """Runs CALLS calls."""
        began = self._processor_now()
        self.times += [time_of(self._call) for _ in range(CALLS)]
        self._processor += self._processor_now() - began

    @property
    def seconds(self) -> float:
        """The median time of a call."""
        return statistics.median(self.times)

    @property
    def processor_seconds(self) -> float:
        """The CPU time of a call, on both sides."""
        return self._processor / len(self.times)

    def _processor_now(self) -> float:
        tasks = Path(f"/proc/{self._pid}/task").glob("*/schedstat")
        return time.thread_time() + sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


class Placement(msgspec.Struct, frozen=True):
    """Where this process and the servers run.

    Left alone, the kernel moves them between one core and two, seldom both servers at once. A wake-up on another core
    takes two to three times as long; on one core nothing overlaps.
    """

    name: str
    ours: int
    servers: int

    def place(self, *servers: int) -> None:
        """Gives all threads of this process and of the servers their core."""
        for pid, core in [(os.getpid(), self.ours), *((pid, self.servers) for pid in servers)]:
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {core})


def placements() -> tuple[Placement, ...]:
    """Returns two cores, for which the goals are, and one core, as far as there are several."""
    first, *others = sorted(os.sched_getaffinity(0))
    alone = Placement("_on_one_core", first, first)
    return (Placement("", first, others[0]), alone) if others else (alone,)


def round_trips(
    client: Client, daemon: int, echo: EchoServer, pages: int, place: Placement, seed: int
) -> Iterator[Result]:
    """Measures reservations of so many pages, in turn with the echo of as many bytes as their keys and sizes have.

    Publishing the pages takes no message and is not measured.
    """
    step = KEY_BYTES * pages
    data = np.random.default_rng([pages, seed]).bytes(step * CALLS * (ROUNDS + 1))
    batches = iter([Keys(SPACE, data[at : at + step]) for at in range(0, len(data), step)])
    message = bytes(step + 8 * pages)
    done = list[Reservation]()
    reserving = Side(lambda: done.append(client.reserve(next(batches), FRAME)), daemon)
    bouncing = Side(lambda: echo.bounce(message), echo.pid)
    for _ in range(ROUNDS):
        reserving.run()
        while done:
            assert done.pop().publish().stored == pages
        bouncing.run()
    against = f"echo: {bouncing.seconds * 1e6:.1f} us; reservation: {reserving.seconds * 1e6:.1f} us"
    goal = REPORTED if place.name else GOALS[pages]
    yield Result(f"reserve_{pages}_over_echo{place.name}", reserving.seconds / bouncing.seconds, "x", against, goal)
    ours, theirs = reserving.processor_seconds, bouncing.processor_seconds
    against = f"both sides; echo: {theirs * 1e6:.1f} us; reservation: {ours * 1e6:.1f} us"
    yield Result(f"reserve_{pages}_cpu_over_echo{place.name}", ours / theirs, "x", against)


def measure() -> Iterator[Result]:
    """Measures with one client and nothing else, in an arena that has room for all pages."""
    size = ("--arena-size", "1GiB", "--set", f"arena.frame_size={FRAME}")
    with Stage(*size) as stage, echo_server() as echo, stage.client() as client:
        settle()
        for seed, place in enumerate(placements()):
            place.place(stage.pid, echo.pid)
            for pages in GOALS:
                yield from round_trips(client, stage.pid, echo, pages, place, seed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--echo"]:
        asyncio.run(serve_echo(sys.argv[2]))
    else:
        main("Round trips of small reservations", measure)
