"""A real daemon with a real disk, and functions that move pages to the disk and out of memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pagetier.client import Client, Keys
from pagetier.shm.protocol import Flush, Flushed, Save, Saved
from running_daemon import RunningDaemon, eventually, namespace

FRAME = 64 << 10
FRAMES = 16
_OTHERS = namespace(salt="others")
_LONG_S = 20.0


@contextmanager
def running_with_disk(folder: Path, *more: str) -> Iterator[RunningDaemon]:
    """Yields a daemon with 16 frames of memory, and a disk for some hundred pages that are written at once."""
    flags = ("--disk-path", str(folder), "--disk-size", "64MiB", "--disk-write", "through", *more)
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), *flags) as daemon:
        assert eventually(lambda: is_open(daemon), _LONG_S), daemon.log.read_text()
        yield daemon


def is_open(daemon: RunningDaemon) -> bool:
    """Returns whether the disk tier is open."""
    return b'"standing":"open"' in (daemon._observer().status() or b"")


def until_written(daemon: RunningDaemon) -> None:
    """Waits until all pages in memory are on disk, too, and no write is in progress."""

    def written() -> bool:
        with daemon._observing() as (link, _):
            saved = link.ask(Save(1), _LONG_S)
        return isinstance(saved, Saved) and saved.synced and not daemon.header().open_entries

    assert eventually(written, _LONG_S), daemon.header()


def flush(daemon: RunningDaemon, tier: str | None = None) -> Flushed:
    """Drops all unused pages from one tier, or from both for None."""
    with daemon._observing() as (link, _):
        flushed = link.ask(Flush(1, None, tier), _LONG_S)
    assert isinstance(flushed, Flushed)
    return flushed


def push_out(daemon: RunningDaemon, client: Client, keys: Keys) -> None:
    """Stores other pages until these are no longer in memory."""
    until_written(daemon)
    for prompt in range(10):
        others = _OTHERS.keys(range(prompt << 20, (prompt << 20) + 16 * FRAMES))
        client.reserve(others, FRAME, timeout=_LONG_S).publish()
        until_written(daemon)
        with client.match(keys) as match:
            if not len(match):
                return
    raise AssertionError("the pages stay in memory")


@contextmanager
def stopped_worker(daemon: RunningDaemon) -> Iterator[int]:
    """Stops the disk worker for the duration of the block, and yields its PID."""
    pid = worker_of(daemon)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def worker_of(daemon: RunningDaemon) -> int:
    """Returns the PID of the disk worker."""
    pids: list[int] = [slot.pid for slot in daemon.slots() if slot.name == "disk tier"]
    return pids[0]
