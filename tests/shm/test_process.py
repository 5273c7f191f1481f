"""Processes are identified, whatever their names are, and watched until they end."""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from child_process import kill, spawn
from open_descriptors import open_descriptors
from pagetier.shm.process import Process


@pytest.fixture
def child() -> Iterator[int]:
    pid = spawn(signal.pause)
    yield pid
    if Path(f"/proc/{pid}").exists():
        kill(pid)


@contextmanager
def descriptors_to_spare(spare: int) -> Iterator[None]:
    """Limits this process to its open descriptors and `spare` more until the end of the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(4096) if not Path(f"/proc/self/fd/{number}").exists()]
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def gone(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def test_invalid_process_ids_count_as_ended() -> None:
    """A thread, and numbers that only corrupt segments can contain."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        for pid in (thread.native_id, 0, 2**31, 2**32 - 1):
            assert not Process(pid, 1).lives()
    finally:
        over.set()
        thread.join()


def test_a_process_is_identified_by_pid_and_start_time(child: int) -> None:
    assert Process.of(os.getpid()) == Process.of(os.getpid())
    assert Process.of(child).pid == child
    assert Process.of(os.getpid()).lives()
    assert not Process(child, Process.of(child).started + 1).lives(), "another start time is another process"


@pytest.mark.parametrize("spare", [0, 1])
def test_a_process_that_cannot_be_read_does_not_count_as_dead(child: int, spare: int) -> None:
    """With one spare descriptor a pidfd can be opened, but the start time cannot be read."""
    living = Process.of(child)
    with descriptors_to_spare(spare), pytest.raises(OSError, match="Too many open files") as caught:
        living.watch()
    assert not isinstance(caught.value, ProcessLookupError)
    assert living.lives()


@pytest.mark.parametrize("name", [b"a) b (c", b") 1 2 3", b"\xff\xfe\x80", "ünï".encode()[:-1], b"\n"], ids=repr)
def test_a_process_may_have_any_name(name: bytes) -> None:
    comm = Path(f"/proc/{os.getpid()}/comm")
    before, known_as = Process.of(os.getpid()), comm.read_bytes()
    comm.write_bytes(name)
    try:
        assert Process.of(os.getpid()) == before
        assert before.lives()
    finally:
        comm.write_bytes(known_as)


def test_a_watch_sees_the_end(child: int) -> None:
    process = Process.of(child)
    watch = process.watch()
    assert not gone(watch)
    kill(child)
    assert gone(watch)
    os.close(watch)


def test_a_process_that_ended_cannot_be_watched(child: int) -> None:
    process = Process.of(child)
    before = open_descriptors()
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert not process.lives(), "a zombie counts as alive"
    os.waitpid(child, 0)
    for _ in range(2):
        with pytest.raises(ProcessLookupError):
            process.watch()
        with pytest.raises(ProcessLookupError):
            Process.of(child)
    assert not process.lives()
    assert open_descriptors() == before


def test_a_watch_that_comes_too_late_leaves_nothing_open(child: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends between the two steps of watching."""
    process = Process.of(child)
    before = open_descriptors()

    def vanish(_: int) -> Process:
        raise ProcessLookupError

    monkeypatch.setattr(Process, "of", vanish)
    with pytest.raises(ProcessLookupError):
        process.watch()
    assert open_descriptors() == before
