"""Tests what a process can do that writes to the shared memory itself, or locks it, and how that is detected."""

from __future__ import annotations

import faulthandler
import fcntl
import mmap
import os
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from child_process import attached
from core_records import lock_words
from eventually import PATIENCE_S, eventually
from keyed_pages import PAGE, found, in_memory
from metrics_scrape import scrape, value
from named_segments import SHM
from pagetier.client import Client
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Observe
from refused_starts import KEYS, PAGES, arguments, fill, refused, still_serves
from running_daemon import RunningDaemon

RELEASED = np.uint64(1 << 32)
LEFT = 4096  # bytes of a segment that is cut


@contextmanager
def locks_of(daemon: RunningDaemon) -> Iterator[npt.NDArray[np.void]]:
    """Yields the lock words of a daemon, writable."""
    with (SHM / f"{daemon.name}.locks").open("r+b") as file:
        yield lock_words(mmap.mmap(file.fileno(), 0), daemon.header().entries)


def test_stores_whose_parts_another_process_released_are_lost_and_counted(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    with RunningDaemon("16MiB", "64KiB", f"--set=metrics.listen={metrics}") as daemon, daemon.client() as client:
        with locks_of(daemon) as words:
            before = words["checksum"].copy()
            reservation = client.reserve(KEYS, PAGE)
            words["parts"][words["checksum"] != before] |= RELEASED
            assert eventually(lambda: daemon.header().doomed == PAGES)
            assert reservation.publish().refused == PAGES
        assert in_memory(client, KEYS) == 0
        (slot,) = daemon.slots()
        assert (slot.counts.lost_pages, slot.counts.stored_pages) == (PAGES, 0)
        assert value(scrape(metrics), "pagetier_unpublished_pages_total") == PAGES


def test_a_page_with_a_wrong_entry_checksum_is_dropped_and_counted_by_the_next_daemon(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    with RunningDaemon() as daemon:
        with locks_of(daemon) as words:
            before = words["checksum"].copy()
            fill(daemon)
            words["checksum"][np.flatnonzero(words["checksum"] != before)[0]] ^= np.uint64(1)
        daemon.kill()
        daemon.start(f"--set=metrics.listen={metrics}")
        (line,) = daemon.lines("event=dropped")
        assert "level=warning" in line and line.endswith("pages=1")
        assert (daemon.header().pages, daemon.header().dropped) == (PAGES - 1, 1)
        assert value(scrape(metrics), "pagetier_adoptions_total", result="dropped") == 1


@pytest.mark.parametrize("kind", ["index", "locks"])
def test_a_daemon_dies_of_a_segment_that_was_cut_and_the_next_one_refuses_it(kind: str) -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        os.truncate(SHM / f"{daemon.name}.{kind}", LEFT)
        assert daemon.wait() == -signal.SIGBUS
        assert "--fresh" in refused(*arguments(daemon))
        daemon.start("--fresh")
        fill(daemon)


def load_when_asked(client: Client, pipe: Connection) -> None:
    """Waits for a command and loads the pages of KEYS."""
    faulthandler.disable()  # pytest's would print where the process dies
    pipe.recv()
    found(client, KEYS)


def test_an_engine_dies_of_an_arena_that_was_cut_and_the_next_daemon_refuses_it() -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        with attached(daemon.socket, load_when_asked) as engine:
            os.truncate(SHM / f"{daemon.name}.arena", LEFT)
            engine.send("load")
            assert engine.wait() == -signal.SIGBUS
        daemon.kill()
        assert "--fresh" in refused(*arguments(daemon))
        daemon.start("--fresh")
        fill(daemon)


def test_a_lock_of_a_watcher_on_the_index_keeps_a_new_daemon_from_starting() -> None:
    with RunningDaemon() as daemon:
        fill(daemon)
        with closing(Link(daemon.socket, PATIENCE_S)) as link:
            index, locks = link.greet(Observe(BUILD), PATIENCE_S).descriptors
        daemon.kill()
        fcntl.flock(index, fcntl.LOCK_EX)
        assert f"another daemon uses segments '{daemon.name}'" in refused(*arguments(daemon))
        os.close(index)
        os.close(locks)
        daemon.start()
        with daemon.client() as client:
            assert still_serves(client)
