"""Tests of a fleet's worker, a real process: pages go out and come back, and a store that hangs does not hang it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from eventually import PATIENCE_S, eventually
from fleet_worker_process import SPACE, FleetWorkerProcess
from index_with_disk import FRAME, key, u32
from pagetier.shm._core import pages_to_find
from pagetier.tiers.worker.fleet_worker import QUESTIONS, SILENT_S
from pagetier.tiers.worker_protocol import (
    Complete,
    Find,
    FleetOpened,
    FleetOptions,
    FleetReport,
    Found,
    GetState,
    HasRead,
    Leave,
    OpenFailed,
    Stored,
    Wrote,
)

NAMES = ("page0", "page1", "page2")
TIMEOUT_S = 4.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    return folder


@pytest.fixture
def options(folder: Path) -> FleetOptions:
    """Options of a store that hangs when the test says so."""
    return FleetOptions(url=url_of(folder, "faulty_store:hanging_folder"), buffers=1 << 20, timeout_s=PATIENCE_S)


@pytest.fixture
def timed_options(folder: Path) -> FleetOptions:
    """The same options for a worker whose time passes when the test says so, by passes()."""
    return FleetOptions(url=url_of(folder, "timed_store:timed_folder"), buffers=1 << 20, timeout_s=TIMEOUT_S)


def url_of(folder: Path, store: str) -> str:
    return f"python://{store}?folder={folder}"


def passes(folder: Path, seconds: float) -> None:
    """Lets the time of a worker pass until so many seconds after its start."""
    (folder / "new").write_text(str(seconds))
    (folder / "new").rename(folder / "time")


@pytest.fixture
def worker(options: FleetOptions) -> Iterator[FleetWorkerProcess]:
    with running(options) as worker:
        yield worker


@pytest.fixture
def timed_worker(timed_options: FleetOptions) -> Iterator[FleetWorkerProcess]:
    with running(timed_options) as worker:
        yield worker


@contextmanager
def running(options: FleetOptions) -> Iterator[FleetWorkerProcess]:
    """Runs a worker until the end of the block."""
    worker = FleetWorkerProcess(options)
    try:
        worker.expect(FleetOpened)
        worker.expect(Complete)
        yield worker
        assert worker.place.sound()
    finally:
        worker.kill()


def spread(worker: FleetWorkerProcess) -> None:
    """Stores pages in memory and in the fleet, and forgets those in memory."""
    for name in NAMES:
        worker.place.store(name)
    worker.write(1, *NAMES)
    assert worker.expect(Wrote).stored == bytes([Stored.DONE] * 3)
    worker.forget()
    assert worker.place.match(*NAMES) == (0, 0)


def test_pages_go_out_and_come_back(worker: FleetWorkerProcess) -> None:
    spread(worker)
    worker.read(2, *NAMES)
    assert worker.expect(HasRead) == HasRead(2, 0, b"\1\1\1", b"", "")
    worker.place.owner.settle()
    for name in NAMES:
        assert worker.place.load(name) == (name.encode() * (FRAME // len(name))).ljust(FRAME, b"\0")


def test_a_page_is_written_once(worker: FleetWorkerProcess) -> None:
    spread(worker)
    for name in NAMES:
        worker.place.store(name)
    worker.write(2, *NAMES)
    assert worker.expect(Wrote) == Wrote(2, bytes([Stored.PRESENT] * 3), "", 0)


def test_a_page_that_has_left_memory_is_not_written(worker: FleetWorkerProcess) -> None:
    worker.place.store("page0")
    gone = worker.identity("page0")
    worker.forget()
    worker.place.store("page1")
    here = worker.identity("page1")
    worker.send_write(1, [gone, here], "page0", "page1")
    assert worker.expect(Wrote).stored == bytes([Stored.GONE, Stored.DONE])


def test_pages_are_found(worker: FleetWorkerProcess) -> None:
    spread(worker)
    worker.send(Find(7, pages_to_find(key("page1") + key("nowhere"), u32(0, 0)), (SPACE,)))
    assert worker.expect(Found) == Found(7, FRAME.to_bytes(8, "little") + bytes(8), "")


def test_a_damaged_page_is_given_up_and_reported(worker: FleetWorkerProcess, folder: Path) -> None:
    spread(worker)
    (path,) = folder.rglob(key("page1").hex())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    worker.read(2, *NAMES)
    came = {type(report): report for report in (worker.next(), worker.next())}  # in either order
    assert came[HasRead] == HasRead(2, 0, b"\1\0\1", key("page1"), "the checksum does not match")
    report = came[FleetReport]
    assert isinstance(report, FleetReport) and report.state.damaged == 1, "an administrator should know"
    worker.place.owner.settle()
    assert worker.place.match("page1") == (0, 0)
    assert not path.exists()


def test_a_hung_store_fails_a_read_and_the_worker_answers(timed_worker: FleetWorkerProcess, folder: Path) -> None:
    worker = timed_worker
    spread(worker)
    (folder / "hang").touch()
    worker.read(2, *NAMES)
    worker.send(GetState())
    assert worker.expect(FleetReport).state.late == 0, "the worker answers before the read has failed"
    assert eventually((folder / "hangs").exists)
    passes(folder, TIMEOUT_S)
    read = worker.expect(HasRead)  # fails if this report came before the other one
    assert (read.read, read.damaged, read.reason) == (bytes(3), b"", "the store did not answer within 4 s")
    worker.send(GetState())
    assert worker.expect(FleetReport).state.late == 1
    (folder / "hang").unlink()
    worker.read(3, *NAMES)
    assert worker.expect(HasRead).read == b"\1\1\1"


def test_more_questions_than_are_asked_at_once_wait_for_the_others(worker: FleetWorkerProcess, folder: Path) -> None:
    (folder / "hang").touch()
    for number in range(3 * QUESTIONS):
        worker.send(Find(number, pages_to_find(key("nowhere"), u32(0)), (SPACE,)))
    worker.send(GetState())
    assert worker.expect(FleetReport).state.url, "the worker answers all the time"
    (folder / "hang").unlink()
    answers = [worker.expect(Found) for _ in range(3 * QUESTIONS)]
    assert {answer.number for answer in answers} == set(range(3 * QUESTIONS))
    assert not any(answer.reason for answer in answers)


def test_a_silent_store_ends_the_worker(timed_worker: FleetWorkerProcess, folder: Path) -> None:
    worker = timed_worker
    spread(worker)
    (folder / "hang").touch()
    worker.read(2, *NAMES)
    assert eventually((folder / "hangs").exists)
    passes(folder, SILENT_S)
    assert worker.expect(HasRead).read == bytes(3)
    worker.send(GetState())
    assert worker.expect(FleetReport).state.late == 1, "it lives: the store is silent, but not too long"
    passes(folder, SILENT_S + 1)
    failed = worker.expect(OpenFailed)
    assert failed.reason == "no call of the store has returned for 10 s: restarting its client"
    assert worker.child.wait(PATIENCE_S) == 4


def test_it_leaves_when_asked(worker: FleetWorkerProcess) -> None:
    worker.send(Leave())
    assert worker.child.wait(PATIENCE_S) == 0


def test_it_ends_with_the_connection(worker: FleetWorkerProcess) -> None:
    worker._socket.close()
    assert worker.child.wait(PATIENCE_S) == 0


def test_a_fleet_that_cannot_be_opened_is_one_line(options: FleetOptions) -> None:
    worker = FleetWorkerProcess(msgspec.structs.replace(options, url="file:///does/not/exist"))
    try:
        failed = worker.expect(OpenFailed)
        assert failed.reason == "/does/not/exist is not a folder: create it, or mount its file system"
        assert worker.child.wait(PATIENCE_S) == 4
    finally:
        worker.kill()
