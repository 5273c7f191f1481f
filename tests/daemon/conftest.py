"""Fixtures for tests of the daemon, and event loops for tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bare_engine import Engine
from client_threads import no_client_is_left
from daemon_turns import Turns
from disk_daemon import DiskDaemon
from in_process_server import SMALL
from pagetier.client import Client
from pagetier.daemon.common import loop_clock
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import SegmentRequest, Segments, take
from refused_starts import fill, shared_memory, still_serves
from running_daemon import RunningDaemon
from virtual_time_loop import OwnTimeLoop

__all__ = ["no_client_is_left"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine function in an event loop of its own, in virtual time if it uses that fixture."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = inspect.signature(pyfuncitem.obj).parameters
    loop: Any = pyfuncitem.funcargs.get("virtual_time")
    with asyncio.Runner(loop_factory=(lambda: loop) if loop else None) as runner:
        runner.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in arguments}))
    return True


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnTimeLoop]:
    """Yields the loop of a test that is a coroutine function. Parts of the daemon ask it even if it does not run."""
    loop = OwnTimeLoop()
    monkeypatch.setattr(loop_clock, "now", loop.time)
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def turns() -> Iterator[Turns]:
    """Yields the turns of the daemon that is run by them."""
    with Turns() as turns:
        yield turns


@pytest.fixture
def name() -> Iterator[str]:
    """Yields a name for segments of which none may be left."""
    name = f"pagetier-test-{secrets.token_hex(6)}"
    yield name
    left = shared_memory(name)
    for file in left:
        (Path("/dev/shm") / file).unlink()
    assert left == []


@pytest.fixture
def segments(name: str) -> Iterator[Segments]:
    """Yields small segments, whose index is consistent at the end."""
    taken = take(SegmentRequest(name, SMALL, BUILD))
    yield taken
    assert taken.owner.check_integrity() == []
    taken.remove()


@pytest.fixture
def given(name: str, tmp_path: Path) -> list[str]:
    """Returns the options of a small daemon with this name; options after these override them."""
    return ["--name", name, "--socket", str(tmp_path / "s"), "--arena-size", "1MiB"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """Yields a daemon for all tests of a module."""
    with RunningDaemon() as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a client of the module's daemon, whose pages are dropped at the end."""
    with daemon.client() as attached:
        yield attached
    daemon.drop_all_pages()


@pytest.fixture
def engine(daemon: DiskDaemon) -> Iterator[Engine]:
    """Yields an engine that is attached to the module's daemon, and checks the index at the end."""
    with Engine(daemon) as attached:
        yield attached
        assert daemon.findings() == []


@pytest.fixture
def left() -> Iterator[RunningDaemon]:
    """Yields a daemon that died and left pages; at the end the next one must still find them."""
    with RunningDaemon() as daemon:
        fill(daemon)
        daemon.kill()
        yield daemon
        if daemon.process is not None and daemon.process.poll() is not None:
            daemon.start()
        with daemon.client() as client:
            assert still_serves(client), daemon.log.read_text()
