"""Tests the process that answers HTTP: the daemon replaces it, it ends with the daemon, and it takes the work."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
from pathlib import Path

import msgspec
import pytest

from core_records import header_with
from eventually import eventually
from http_calls import call, http_process, request
from pagetier.daemon.common import loop_clock
from pagetier.daemon.config.schema import AccessOptions, Config
from pagetier.daemon.http import http_server
from pagetier.daemon.http.channel_messages import Settings
from pagetier.daemon.http.daemon_channel import ANSWER_S, DaemonChannel
from pagetier.daemon.http.http_connection import HttpError
from pagetier.daemon.http.http_server import _LASTING_S, HttpServer
from pagetier.daemon.index.quotas import MOST_PREFETCHES, PrefetchQuota
from pagetier.daemon.workers.supervisor import DISK_WORKER, FLEET_WORKER
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.message_codec import Unpacker
from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome
from process_states import is_alive
from running_daemon import RunningDaemon, namespace
from virtual_time_loop import OwnTimeLoop

KEYS = namespace().keys(range(16 * 2))
PAGES = {"namespace": "model", "tokens": list(range(32))}


def test_a_process_that_dies_is_replaced_and_requests_wait(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as daemon, daemon.client() as client:
        client.store(KEYS, [bytes(100)] * 2)
        first = http_process(daemon)
        os.kill(first, signal.SIGKILL)
        assert call(place, "GET", "/healthz")[0] == 200
        assert http_process(daemon) != first
        assert len(daemon.lines("event=http_ended")) == 1
        with client.match(KEYS) as match:
            assert len(match) == 2


async def test_the_pause_before_the_next_process_doubles_and_begins_again_after_one_that_lasts(
    monkeypatch: pytest.MonkeyPatch, virtual_time: OwnTimeLoop
) -> None:
    starts: list[float] = []

    def refuse(*_: object) -> None:
        starts.append(loop_clock.now())
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(http_server, "_HttpProcess", refuse)
    server = HttpServer(Config(), None)  # type: ignore[arg-type]
    await loop_clock.pause(61.6)
    pauses = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert pauses == pytest.approx([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0])
    for lasted, pause in ((0.99 * _LASTING_S, 30.0), (1.01 * _LASTING_S, 0.5)):
        server._again.cancel()  # type: ignore[union-attr]
        virtual_time.passes(lasted - (loop_clock.now() - starts[-1]))
        ended = loop_clock.now()
        server.ended("ended")
        await loop_clock.pause(pause)
        await loop_clock.give_way()
        assert starts[-1] - ended == pytest.approx(pause)
    server.stop()


class Answers(asyncio.Transport):
    """A transport to a daemon that does not answer."""

    def write(self, data: object) -> None:
        pass


async def test_a_daemon_that_does_not_answer_is_given_up(virtual_time: OwnTimeLoop) -> None:
    channel = DaemonChannel(Settings(AccessOptions()), Unpacker())
    channel.connection_made(Answers())
    with pytest.raises(HttpError, match="the daemon does not answer"):
        await channel.numbers()
    assert virtual_time.time() == pytest.approx(ANSWER_S)
    with pytest.raises(HttpError, match="the daemon does not answer"):
        await channel.fetch(0, bytes(KEY_BYTES), 3.0)
    assert virtual_time.time() == pytest.approx(2 * ANSWER_S + 3.0)


def test_the_process_ends_with_the_daemon(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as daemon:
        first = http_process(daemon)
        daemon.kill()
        assert eventually(lambda: not is_alive(first))
        daemon.start()
        assert call(place, "GET", "/healthz")[0] == 200
        second = http_process(daemon)
        daemon.signal(signal.SIGSTOP)
        os.kill(second, signal.SIGTERM)  # as a service manager may, for all processes
        daemon.signal(signal.SIGCONT)
        assert call(place, "GET", "/healthz")[0] == 200 and http_process(daemon) == second
    assert not is_alive(second) and not place.exists()


def test_only_the_worker_of_the_fleet_has_the_credentials_of_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    (tmp_path / "store").mkdir()
    more = ["--set", f"http.listen={tmp_path / 'http.sock'}", "--set", f"remote.url=file://{tmp_path}/store"]
    more += ["--disk-path", str(tmp_path / "disk"), "--disk-size", "8MiB"]
    with RunningDaemon("1MiB", "64KiB", *more) as daemon:
        assert eventually(lambda: {DISK_WORKER, FLEET_WORKER} <= {slot.name for slot in daemon.slots()})
        workers = {slot.name: slot.pid for slot in daemon.slots()}
        assert "a secret" not in environ_of(http_process(daemon)) + environ_of(workers[DISK_WORKER])
        assert "a secret" in environ_of(workers[FLEET_WORKER])


def environ_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_large_requests_cost_the_daemon_nothing(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    body = msgspec.json.encode({"namespace": "model", "tokens": list(range(100_000))})
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as daemon, daemon.client() as client:
        client.store(KEYS, [bytes(100)] * 2)
        label = daemon.snapshot().namespaces[0].label
        body = msgspec.json.encode({"namespace": label, "tokens": list(range(150_000))})
        assert len(body) > 900_000
        worker = http_process(daemon)
        before = cpu_ns(daemon.pid), cpu_ns(worker)
        for _ in range(40):
            assert request(place, "POST", "/v1/lookup", body).status == 200
        mine, theirs = cpu_ns(daemon.pid) - before[0], cpu_ns(worker) - before[1]
    assert mine < theirs / 4, (mine, theirs)


def quota(frames: int, share: float) -> PrefetchQuota:
    return PrefetchQuota(header_with(frames=frames), share)


@pytest.mark.parametrize(("share", "most"), [(0.5, 1024), (0.25, 512)])
def test_a_user_reads_ahead_at_most_a_share_of_the_arena(share: float, most: int) -> None:
    waiting, answers, offered = list[object](), list[Fetched](), list[int]()
    limits = quota(2048, share)

    def fetch(request: Fetch, reply: object, room: int) -> int:
        offered.append(room)
        waiting.append(reply)
        return min(room, len(request.keys) // KEY_BYTES)

    def ask(user: int, pages: int) -> None:
        limits.enter(user, Fetch(1, bytes(KEY_BYTES * pages), 1.0), answers.append, fetch)

    ask(1, most - 2)
    ask(1, 5)
    assert offered == [most, 2] and not answers
    ask(1, 1)
    assert answers[-1].outcomes == bytes([FetchOutcome.NO_ROOM]) and "arena.process_share" in answers[-1].reason
    ask(2, 1)
    assert offered[-1] == most, "users have their own shares"
    waiting[0](Fetched(1, b""))  # type: ignore[operator]
    ask(1, 1)
    assert offered[-1] == most - 2
    limits.follow(share / 2)
    ask(3, 1)
    assert offered[-1] == most // 2


def test_a_user_has_at_most_so_many_requests_that_read_ahead() -> None:
    limits, answers = quota(4, 0.5), list[Fetched]()
    for _ in range(MOST_PREFETCHES + 1):
        limits.enter(1, Fetch(1, bytes(KEY_BYTES), 1.0), answers.append, lambda *_: 0)
    assert len(answers) == 1
