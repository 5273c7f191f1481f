"""Tests the life of the daemon: which clients are served when, and in which order it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from eventually import PATIENCE_S, eventually
from in_process_server import SMALL, Peer, see_peers_off, serves
from pagetier.daemon import lifecycle as daemon_run
from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.systemd_notify import Notifier
from pagetier.daemon.config.schema import AccessOptions, ArenaOptions, Config
from pagetier.daemon.host.prefault import Prefaulted, PrefaultError
from pagetier.daemon.server.control_socket import Server
from pagetier.daemon.stop_signals import Reported, StopRequest
from pagetier.shm.protocol import BUILD, Attach, Refusal, Welcome
from pagetier.shm.segments import Origin, SegmentRequest, Segments, take
from refused_starts import shared_memory


class SlowPrefault:
    """A replacement for prefault() that takes as long as the test wants."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.error: PrefaultError | None = None

    def __call__(self, populate: object, total: int, *, stop: threading.Event, **_: object) -> Prefaulted:
        self.began.set()
        while not self.may_end.wait(0.01) and not stop.is_set():
            pass
        if self.error is not None:
            raise self.error
        return Prefaulted(nbytes=total, wanted=total, seconds=0.1, threads=1)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowPrefault:
    prefault = SlowPrefault()
    monkeypatch.setattr(daemon_run, "prefault", prefault)
    return prefault


@pytest.fixture
def config(tmp_path: Path) -> Config:
    name = f"pagetier-test-{secrets.token_hex(6)}"
    arena = ArenaOptions(size=SMALL.frames * SMALL.frame_bytes, frame_size=SMALL.frame_bytes)
    return Config(name=name, socket=tmp_path / "pagetier.sock", arena=arena)


class Signals(Reported):
    """The signals to the daemon; `reloaded` is set when it has handled one that asks for a reload."""

    def __init__(self) -> None:
        super().__init__()
        self.reloaded = asyncio.Event()

    def pass_to(
        self, leave: Callable[[StopRequest], None], reload: Callable[[], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        def reload_and_note() -> None:
            reload()
            self.reloaded.set()

        super().pass_to(leave, reload_and_note, loop)


@asynccontextmanager
async def live(
    config: Config, slow: SlowPrefault, context: daemon_run.RunContext | None = None, signals: Reported | None = None
) -> AsyncIterator[None]:
    """Runs a daemon in this process. The block begins when it is being populated, and ends the daemon."""
    segments = take(SegmentRequest(config.name, SMALL, BUILD))
    server = Server(config.socket, AccessOptions())
    daemon = asyncio.create_task(daemon_run.run(config, segments, server, signals or Reported(), context))
    await asyncio.to_thread(slow.began.wait, PATIENCE_S)
    try:
        yield
    except BaseException:
        slow.may_end.set()
        daemon.cancel()
        raise
    finally:
        await asyncio.wait([daemon])
        await see_peers_off()
    await daemon


def leave_segments(config: Config) -> None:
    segments = take(SegmentRequest(config.name, SMALL, BUILD))
    assert segments.origin is Origin.MADE
    segments.release()


def remove_segments(config: Config) -> Segments:
    segments = take(SegmentRequest(config.name, SMALL, BUILD))
    segments.remove()
    return segments


def send_signal(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def attached(config: Config) -> Welcome | Refusal:
    with Peer(config.socket) as peer:
        answer = peer.ask(Attach(BUILD, 1, "engine"))
        assert isinstance(answer, Welcome | Refusal)
        return answer


async def test_engines_wait_and_observers_do_not_while_a_fresh_arena_is_populated(
    config: Config, slow: SlowPrefault, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with live(config, slow):
        assert await asyncio.to_thread(serves, config.socket)
        refusal = await asyncio.to_thread(attached, config)
        assert isinstance(refusal, Refusal)
        assert "being populated" in refusal.reason
        assert isinstance(await asyncio.to_thread(attached, config), Refusal)
        refused = [each for each in caplog.records if "being populated" in each.getMessage()]
        assert [each.levelno for each in refused] == [logging.INFO], "two engines, or one that tries again"
        slow.may_end.set()
        assert await asyncio.to_thread(eventually, lambda: isinstance(attached(config), Welcome))
        send_signal(signal.SIGTERM)
    assert shared_memory(config.name) == []
    assert not config.socket.exists()


async def test_warm_pages_are_served_while_the_rest_is_populated(config: Config, slow: SlowPrefault) -> None:
    leave_segments(config)

    async with live(config, slow):
        assert isinstance(await asyncio.to_thread(attached, config), Welcome)
        slow.may_end.set()
        send_signal(signal.SIGTERM)
    assert shared_memory(config.name) == []


class Heard(Notifier):
    """Keeps the messages to systemd and their times, without those about the progress of populating."""

    def __init__(self) -> None:
        super().__init__({})
        self.lines: list[str] = []
        self.times: list[float] = []

    def _send(self, *lines: str) -> None:
        self.lines += lines
        self.times += [loop_clock.now()] * len(lines)


async def test_a_reload_while_it_is_populated_waits_and_does_not_say_ready(config: Config, slow: SlowPrefault) -> None:
    heard, signals = Heard(), Signals()

    async with live(config, slow, daemon_run.RunContext(heard, lambda _: config), signals):
        send_signal(signal.SIGHUP)
        await signals.reloaded.wait()
        assert heard.lines == []
        slow.may_end.set()
        assert await asyncio.to_thread(eventually, lambda: "RELOADING=1" in heard.lines)
        send_signal(signal.SIGTERM)
    assert heard.lines.index("READY=1") < heard.lines.index("RELOADING=1")


async def test_a_reload_ends_also_if_it_fails(config: Config, slow: SlowPrefault) -> None:
    heard = Heard()
    slow.may_end.set()

    def read(_: object) -> Config:
        raise MemoryError

    async with live(config, slow, daemon_run.RunContext(heard, read)):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.lines.append(repr(context)))
        assert await asyncio.to_thread(eventually, lambda: "READY=1" in heard.lines)
        heard.lines.clear()
        send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(eventually, lambda: any("MemoryError" in line for line in heard.lines))
        send_signal(signal.SIGTERM)
    assert heard.lines.index("RELOADING=1") < heard.lines.index("READY=1")


@pytest.mark.usefixtures("virtual_time")
@pytest.mark.parametrize("origin", Origin)
async def test_the_status_names_the_pages_that_are_served(config: Config, slow: SlowPrefault, origin: Origin) -> None:
    if origin is Origin.ADOPTED:
        leave_segments(config)
    heard = Heard()

    async with live(config, slow, daemon_run.RunContext(heard, lambda _: config)):
        populating = len(heard.lines)
        slow.may_end.set()
        assert await asyncio.to_thread(eventually, lambda: len(heard.lines) >= populating + 4)
        assert heard.lines[-1].startswith("STATUS=serving 0 pages")
        assert daemon_run._STATUS_S < heard.times[-1] - heard.times[-2] < 1.1 * daemon_run._STATUS_S
        send_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_while_it_is_populated(config: Config, slow: SlowPrefault, number: signal.Signals) -> None:
    async with live(config, slow):
        send_signal(number)
    assert shared_memory(config.name) == []
    assert not config.socket.exists()


async def test_memory_that_runs_out_ends_a_fresh_daemon(config: Config, slow: SlowPrefault) -> None:
    with pytest.raises(PrefaultError, match="memory ran out"):
        async with live(config, slow):
            slow.error = PrefaultError(12, 0, 1 << 20)
            slow.may_end.set()
    assert shared_memory(config.name) == []
    assert not config.socket.exists()


async def test_memory_that_runs_out_leaves_warm_pages_for_the_next(config: Config, slow: SlowPrefault) -> None:
    leave_segments(config)

    with pytest.raises(PrefaultError):
        async with live(config, slow):
            slow.error = PrefaultError(12, 0, 1 << 20)
            slow.may_end.set()
    assert len(shared_memory(config.name)) == 3
    assert remove_segments(config).origin is Origin.ADOPTED


async def test_a_hand_over_leaves_segments_and_no_socket(config: Config, slow: SlowPrefault) -> None:
    async with live(config, slow):
        slow.may_end.set()
        send_signal(signal.SIGUSR1)
    assert not config.socket.exists()
    assert remove_segments(config).origin is Origin.ADOPTED


async def test_a_socket_that_another_daemon_has_put_there_stays(config: Config, slow: SlowPrefault) -> None:
    async with live(config, slow):
        config.socket.unlink()
        config.socket.touch()
        send_signal(signal.SIGTERM)
    assert config.socket.exists()
