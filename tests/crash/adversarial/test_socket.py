"""Tests adversarial peers of the control socket: an engine is served, and the peers cost the daemon few resources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from adversarial.bad_peers import CROWD
from adversarial.control_client import Honest
from adversarial.processes import NOBODY, harm
from adversarial.resource_cost import Sampled, cost_of
from disk_daemon import DiskDaemon
from eventually import eventually
from pagetier.daemon.common.log_throttle import LINES
from pagetier.daemon.server.limits import MOST_SILENT
from running_daemon import RunningDaemon

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
FRAME, FRAMES = 64 << 10, 1024
ROUNDS = 30
ON_THEIR_WAY = 3 * 128  # connections that the loop has accepted and not closed yet
FEW = 512  # descriptors
FLUSHING = {"asking", "watching"}  # attacks that may flush a page between its store and its load
# The limits for two users; each connection may send 2 MiB before its user is identified.
DESCRIPTORS, MEMORY = 2 * MOST_SILENT + ON_THEIR_WAY, 192 << 20
# Log lines of one kind and user a minute, for at most two kinds, and the daemon's own; a run may span two minutes.
MOST_LINES = 4 * LINES + 20


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon that leaves out no page, so that each page of the honest engine is found."""
    flags = ("--set", "access.socket_mode=0666", "--set", "evict.policy=lru")
    with RunningDaemon(str(FRAMES * FRAME), str(FRAME), *flags) as daemon:
        Path(daemon.folder.name).chmod(0o755)
        yield daemon


@contextmanager
def served_beside(
    daemon: RunningDaemon, acts: Iterable[str], descriptors: int, user: int | None = None
) -> Iterator[None]:
    """Checks an engine beside all of these attacks at once, and that their connections are closed at the end."""
    pid = daemon.pid
    with Honest(daemon.socket) as honest, Sampled(pid) as sampled:
        assert honest.wait_for(3)
        with ExitStack() as stack:
            for act in acts:
                stack.enter_context(harm("bad_peers", act, daemon.socket, user))
            assert honest.wait_for(ROUNDS), honest.served
            yield
    served, most = honest.served, sampled.most
    assert (served.wrong, served.refused) == (0, 0), served
    assert honest.engine.again <= (served.rounds / 3 if FLUSHING & set(acts) else 0), (served, honest.engine.again)
    assert most.descriptors < descriptors + sampled.first.descriptors
    assert most.anon - sampled.first.anon < MEMORY
    assert len(daemon.log.read_text().splitlines()) < MOST_LINES
    assert eventually(lambda: Sampled(pid).first.descriptors <= sampled.first.descriptors)


def expect_served(daemon: RunningDaemon, *acts: str, user: int | None = None) -> None:
    """Checks an engine beside all of these attacks at once."""
    with served_beside(daemon, acts, DESCRIPTORS, user):
        pass


def test_garbage_does_not_delay_an_engine(daemon: RunningDaemon) -> None:
    expect_served(daemon, "garbage", "half", "huge", "rights")


def test_endless_connections_do_not_delay_an_engine(daemon: RunningDaemon) -> None:
    """Connections of one user may wait for each other, so the honest engine attaches first."""
    expect_served(daemon, "silent", "turned_away")


def test_ten_thousand_connections_do_not_exhaust_few_descriptors() -> None:
    """An attached engine is served all the time, a later one attaches, and nothing stays open."""
    with (
        RunningDaemon(
            str(FRAMES * FRAME), str(FRAME), "--set", "evict.policy=lru", before=["prlimit", f"--nofile={FEW}"]
        ) as daemon,
        served_beside(daemon, ["crowd"] * (10_000 // CROWD), FEW - cost_of(daemon.pid).descriptors),
        daemon.client() as late,
    ):
        assert late.attached


def test_incomplete_greetings_do_not_delay_an_engine(daemon: RunningDaemon) -> None:
    expect_served(daemon, "hoarding")


def test_incomplete_requests_do_not_delay_an_engine(daemon: RunningDaemon) -> None:
    expect_served(daemon, "stuffing")


def test_endless_requests_do_not_delay_an_engine(daemon: RunningDaemon) -> None:
    expect_served(daemon, "asking", "watching")


def test_requests_that_walk_a_large_index_do_not_delay_an_engine() -> None:
    with DiskDaemon(FRAMES, "64MiB", "--set", "index.entries=1000000") as daemon:
        expect_served(daemon, "saving")


@as_root
def test_a_user_that_may_not_attach_cannot_delay_an_engine(daemon: RunningDaemon) -> None:
    expect_served(daemon, "garbage", "silent", "hoarding", "turned_away", user=NOBODY)
    with daemon.client(), harm("bad_peers", "silent", daemon.socket, NOBODY), daemon.client() as late:
        assert late.attached, "the silence of another user must not delay an engine"


@as_root
def test_observers_leave_connections_for_an_engine() -> None:
    with RunningDaemon(
        "16MiB", "64KiB", "--set", "access.socket_mode=0666", "--set", "access.watch_users=nobody"
    ) as daemon:
        Path(daemon.folder.name).chmod(0o755)
        with ExitStack() as stack:
            for _ in range(5):  # a process has a quarter of all connections
                stack.enter_context(harm("bad_peers", "crowding", daemon.socket, NOBODY))
            with daemon.client() as late:
                assert late.attached
