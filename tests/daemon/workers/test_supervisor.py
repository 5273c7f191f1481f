"""Tests that a worker is kept running, however it ends, and that dead workers leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import secrets
import select
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from fake_worker import impostor
from numbered_pages import GEOMETRY
from open_descriptors import open_descriptors
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.workers import supervisor, worker_link, worker_process
from pagetier.daemon.workers.supervisor import Supervisor
from pagetier.daemon.workers.worker_link import ChildLink
from pagetier.daemon.workers.worker_process import CommandSender
from pagetier.shm._core import ShmError
from pagetier.shm.process import Process
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import SegmentRequest, Segments, take
from pagetier.tiers.worker_protocol import WORKER_BUILD, Leave, Report, Serve, Trust
from process_states import children_of

# A worker may take seconds to start on a busy machine. One that is killed because it has not left in time, and is not
# dead a second later, keeps its pidfd open: the daemon ends then, but this process does not.
LEAVING_S = 30.0


class Handler:
    """Notes what the supervisor reports, and frees the slots of dead workers."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.begun: list[int] = []
        self.send: CommandSender = worker_process.no_worker
        self.deaths: list[str] = []
        self.failures: list[str] = []
        self.heard = 0

    def started(self, slot: int, send: CommandSender) -> None:
        self.begun.append(slot)
        self.send = send

    def hear(self, report: Report) -> None:
        self.heard += 1

    def ended(self, slot: int, why: str) -> None:
        assert slot == self.begun[-1]
        self._segments.owner.reap(slot)
        self.deaths.append(why)

    def failed(self, why: str) -> None:
        self.failures.append(why)


@pytest.fixture
def segments() -> Iterator[Segments]:
    taken = take(SegmentRequest(f"pagetier-test-{secrets.token_hex(6)}", GEOMETRY, BUILD))
    yield taken
    assert taken.owner.check_integrity() == []
    taken.remove()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 0.01)


@asynccontextmanager
async def supervised(segments: Segments, folder: Path) -> AsyncIterator[tuple[Supervisor, Handler]]:
    """Yields a running supervisor and its handler, and stops it at the end of the block."""
    handler = Handler(segments)
    options = DeviceOptions(folder / "disk", 1 << 26, 4, "lmdb")
    running = Supervisor(segments, options, handler, asyncio.get_running_loop())
    running.start()
    try:
        yield running, handler
    finally:
        await running.stop(LEAVING_S)


async def until(what: Callable[[], bool]) -> None:
    assert await asyncio.to_thread(eventually, what), "it takes too long"


def leftovers() -> tuple[set[int], Counter[str]]:
    """Returns the processes and descriptors of this process, without what nothing refers to any more."""
    gc.collect()
    return set(children_of(os.getpid())), open_descriptors()


def nothing_more_than(before: tuple[set[int], Counter[str]]) -> bool:
    """Returns whether there are no other leftovers.

    Clients of tests of other folders may be trying to reconnect in this process, so a few descriptors come and go.
    """
    processes, descriptors = leftovers()
    return processes <= before[0] and descriptors <= before[1]


async def test_twenty_dead_workers_leave_nothing_behind(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor(tmp_path, monkeypatch, "os._exit(3)")
    before = leftovers()
    async with supervised(segments, tmp_path) as (running, handler):
        await until(lambda: len(handler.deaths) >= 20)
        assert running.restarts >= 19
    assert set(handler.deaths) <= {
        "its worker ended with exit code 3",
        "its worker was killed by signal 9, maybe because memory ran out: see dmesg",
    }
    assert handler.failures == []
    assert set(handler.begun) == {handler.begun[0]}, "slots were lost"
    assert segments.owner.attachments() == []
    await until(lambda: nothing_more_than(before))


SAYS = (  # a fake worker
    "import msgspec, struct",
    "def say(*fields):",
    "    body = msgspec.msgpack.encode(fields)",
    "    there.sendall(struct.pack('<I', len(body)) + body)",
)


async def test_the_last_report_of_a_worker_is_received(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "say('openfailed', 'the folder is on the moon')"
    impostor(tmp_path, monkeypatch, *SAYS, "there.recv(9999)", said, "os._exit(4)")
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.deaths) >= 8)
    assert set(handler.deaths[:8]) == {"the folder is on the moon"}


async def test_files_that_a_worker_distrusts_are_verified_until_another_has_opened_them(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers in between do not change this: a hanging worker may still use the tier."""
    commands = tmp_path / "commands"
    impostor(
        tmp_path,
        monkeypatch,
        *SAYS,
        "import pathlib",
        f"commands = pathlib.Path({str(commands)!r})",
        "lives = commands.read_bytes() if commands.exists() else b''",
        "commands.write_bytes(lives + bytes([msgspec.msgpack.decode(there.recv(9999)[4:])[-4]]))",
        "STATE = dict.fromkeys('file_bytes cap_bytes used_frames capacity disk_free disk_total last_sync'.split(), 7)",
        "STATE |= dict(clean=True, opened='somehow')",
        "if len(lives) == 0: say('openfailed', 'no sync', 1)",
        "if len(lives) == 1: say('openfailed', 'in use')",
        "if len(lives) == 2: os._exit(3)",
        f"if len(lives) == 3: say('opened', 7, STATE, 0, {WORKER_BUILD!r})",
        "os._exit(4)",
    )
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.deaths) >= 5)
    assert list(commands.read_bytes())[:5] == [Trust.AS_LEFT, Trust.PROVEN, Trust.PROVEN, Trust.PROVEN, Trust.AS_LEFT]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["there.shutdown(socket.SHUT_RDWR)", "there.close()"], "did not end by itself"),
        ([*SAYS, "there.recv(9999)", "say('openfailed', 'the folder is on the moon')"], "the folder is on the moon"),
    ],
    ids=["its connection is closed", "it failed to open the tier"],
)
async def test_a_worker_that_should_have_ended_is_ended(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], reason: str
) -> None:
    monkeypatch.setattr(worker_process, "_DYING_S", 0.2)
    impostor(tmp_path, monkeypatch, *lines, "time.sleep(99)")
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.deaths) >= 2)
    assert all(reason in why for why in handler.deaths[:2])


async def test_a_worker_that_ends_at_once_is_reported_with_its_exit_code(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commands may come too late."""
    serve = worker_process.WorkerProcess.serve

    async def serve_late(worker: worker_process.WorkerProcess, *arguments: Any) -> None:
        assert select.select([worker._socket], [], [], 30.0)[0], "the worker lives"
        await serve(worker, *arguments)

    monkeypatch.setattr(worker_process.WorkerProcess, "serve", serve_late)
    impostor(tmp_path, monkeypatch, "os._exit(7)")
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: bool(handler.deaths))
    assert handler.deaths[0] == "its worker ended with exit code 7"


@pytest.mark.usefixtures("virtual_time")
async def test_the_pause_before_the_next_start_doubles_and_is_bounded(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[float] = []

    def refuse(*_: object) -> None:
        starts.append(loop_clock.now())
        assert len(starts) < 99, "it does not pause"
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_S", 5.0)
    monkeypatch.setattr(worker_link, "_start", refuse)
    async with supervised(segments, tmp_path) as (running, _):
        await loop_clock.pause(21.5)
        assert running.restarts == len(starts)
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses == pytest.approx([0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


@pytest.mark.parametrize("broken", [(Process, "of_pidfd"), (worker_link, "_start")], ids=["pid", "program"])
async def test_a_worker_that_cannot_be_started_leaves_nothing(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: tuple[object, str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(*broken, refuse)
    before = leftovers()
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.failures) >= 5)
    assert handler.failures[0] == "its worker cannot be started: [Errno 24] Too many open files"
    assert handler.begun == []
    await until(lambda: nothing_more_than(before))


@pytest.mark.parametrize(
    "error", [ShmError("the segments were removed"), OSError(24, "Too many open files")], ids=["removed", "too many"]
)
async def test_a_worker_that_cannot_receive_the_segments_is_replaced_when_it_can(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_: Segments) -> list[int]:
        raise error

    impostor(tmp_path, monkeypatch, "there.recv(9999)", "os._exit(3)")
    given, before = Segments.descriptors, leftovers()
    monkeypatch.setattr(Segments, "descriptors", refuse)
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.deaths) >= 3)
        assert set(handler.deaths) == {f"its worker cannot receive the segments: {error}"}
        monkeypatch.setattr(Segments, "descriptors", given)
        await until(lambda: handler.deaths[-1] == "its worker ended with exit code 3")
    assert set(handler.begun) == {handler.begun[0]}, "slots were lost"
    assert segments.owner.attachments() == []
    await until(lambda: nothing_more_than(before))


async def test_without_a_slot_there_is_no_worker(segments: Segments, tmp_path: Path) -> None:
    me, before = Process.of(os.getpid()), set(children_of(os.getpid()))
    while segments.owner.attach(me.pid, 0, me.started, secrets.randbits(60), "engine") >= 0:
        pass
    async with supervised(segments, tmp_path) as (_, handler):
        await until(lambda: len(handler.failures) >= 2)
    assert set(handler.failures) == {"its worker cannot be started: all slots are in use"}
    # Other tests of this process have daemons of their own.
    await until(lambda: set(children_of(os.getpid())) <= before)  # the last one was killed a moment ago
    for attachment in segments.owner.attachments():
        segments.owner.reap(attachment.slot)


async def test_a_worker_leaves_on_request(segments: Segments, tmp_path: Path) -> None:
    async with supervised(segments, tmp_path) as (running, handler):
        await until(lambda: bool(handler.begun) and (tmp_path / "disk/state").exists())
        running.leaving = True
        handler.send(Leave())
        await until(lambda: handler.deaths != [])
    assert handler.deaths == ["its worker ended with exit code 0"]


async def test_a_worker_that_dies_while_it_is_connected_to_leaves_its_descriptor_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: the loop kept watching the descriptor number, so that its next user could not be watched."""
    loop = asyncio.get_running_loop()
    worker = worker_process.WorkerProcess(loop, lambda report: None, ChildLink({}))

    def die(name: str) -> None:
        if name == "disk.served":
            worker.kill()
            os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(worker_process, "point", die)
    number = worker._socket.fileno()
    await worker.serve(Serve(1, "nowhere", 1 << 20, 1), [])
    await worker.ended
    await loop_clock.give_way()
    pipes = [end for _ in range(8) for end in os.pipe()]
    try:
        assert number in pipes, "it is free again"
        loop.add_reader(number, lambda: None)
        loop.remove_reader(number)
    finally:
        for end in pipes:
            os.close(end)


async def test_an_abandoned_worker_is_killed_and_not_heard(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a report on pages that were read for a daemon that was ending was a traceback in its log."""
    before = set(children_of(os.getpid()))
    impostor(tmp_path, monkeypatch, *SAYS, "while True: say('hasread', 1, 0, b'', b'', '')")
    async with supervised(segments, tmp_path) as (running, handler):
        await until(lambda: handler.heard > 0)
        running.abandon()
        heard = handler.heard
        await until(lambda: set(children_of(os.getpid())) <= before)
        assert (handler.heard, handler.deaths) == (heard, [])
    segments.owner.reap(handler.begun[-1])
