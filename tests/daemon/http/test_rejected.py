"""Tests that bad requests get one sentence, and that no caller of the HTTP interface harms an engine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

import pytest

from eventually import PATIENCE_S
from http_calls import call, http_process, request
from in_process_server import see_peers_off
from metrics_scrape import ask
from pagetier.client import Client
from pagetier.daemon.common import loop_clock
from pagetier.daemon.http.bodies import MOST_PAGES
from pagetier.daemon.http.channel_messages import Entrance
from pagetier.daemon.http.daemon_channel import ANSWER_S
from pagetier.daemon.http.http_connection import MOST_BODY, HttpConnection, Request, Response
from pagetier.daemon.http.peers import MOST_OF_CALLER, Connections, OpenConnections
from running_daemon import RunningDaemon, namespace
from virtual_time_loop import OwnTimeLoop

SPACE = namespace()
KEY = SPACE.keys(range(16)).data.hex()
GOOD = {"namespace": SPACE.digest.hex(), "keys": [KEY]}
SINGLE = {"namespace": namespace(1).digest.hex()}
LOOKUP = b"POST /v1/lookup HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http") / "http.sock"


@pytest.fixture(scope="module")
def daemon(place: Path) -> Iterator[RunningDaemon]:
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}") as running, running.client() as client:
        client.store(SPACE.keys(range(16)), [bytes(100)])
        client.store(namespace(1).keys([1]), [bytes(100)])
        door = http_process(running)
        yield running
        assert http_process(running) == door, "no request ends the process"
        assert running.findings() == []
        assert not running.lines("Traceback")


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a client for which stores and matches work after the test too."""
    with daemon.client() as attached:
        yield attached
        keys = SPACE.keys(range(16))
        attached.store(keys, [bytes(100)])
        with attached.match(keys) as match:
            assert len(match) == 1


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "the body is not valid"),
        (b"{", 400, "the body is not valid"),
        (b"\xff\xfe", 400, "the body is not valid"),
        (b"[" * 100_000, 400, "the body is not valid"),
        ({"namespace": SPACE.digest.hex()}, 400, "give the pages by one of keys, hashes and tokens"),
        (GOOD | {"tokens": [1]}, 400, "give the pages by one of keys, hashes and tokens"),
        (GOOD | {"keys": []}, 400, "there is no full page of 16 tokens"),
        (GOOD | {"keys": None, "tokens": [1]}, 400, "there is no full page of 16 tokens"),
        (GOOD | {"keys": ["ab"]}, 400, "`$.keys[0]`: `pagetier pages ls NAMESPACE --json` prints whole keys"),
        (GOOD | {"keys": [KEY[:-1] + "g"]}, 400, "`$.keys[0]`"),
        (GOOD | {"keys": [KEY + "\n"]}, 400, "`$.keys[0]`"),
        (GOOD | {"keys": None, "hashes": [KEY + "\n"]}, 400, "`$.hashes[0]`"),
        (SINGLE | {"tokens": [1] * (MOST_PAGES + 1)}, 413, "at most 65536 pages, not 65537: ask for the first ones"),
        (GOOD | {"keys": None, "tokens": [1] * 15 + [1 << 32]}, 400, "`$.tokens[15]`"),
        (GOOD | {"keys": None, "tokens": [-1]}, 400, "`$.tokens[0]`"),
        (GOOD | {"keys": None, "tokens": [1 << 200]}, 400, "`$.tokens[0]`"),
        (GOOD | {"keys": None, "tokens": [1.5]}, 400, "`$.tokens[0]`"),
        (GOOD | {"more": 1}, 400, "unknown field"),
        (GOOD | {"namespace": "other"}, 404, 'no namespace is "other"'),
    ],
)
def test_a_wrong_body_is_rejected(place: Path, body: bytes | dict[str, object], status: int, words: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = request(place, "POST", "/v1/lookup", data)
    text = json.loads(answer.body)["error"]
    assert (answer.status, words in text, "\n" in text) == (status, True, False), answer


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/prefetch", {"timeout": 0}),
        ("/v1/prefetch", {"timeout": 1e9}),
        ("/v1/prefetch", {"timeout": "soon"}),
        ("/v1/hint", {}),
        ("/v1/hint", {"hint": "none"}),
        ("/v1/hint", {"hint": "keep", "ttl": -1}),
    ],
)
def test_wrong_options_are_rejected(place: Path, path: str, more: dict[str, object]) -> None:
    status, body = call(place, "POST", path, GOOD | more)
    assert (status, "the body is not valid" in body["error"]) == (400, True)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"POST /v1/lookup HTTP/1.1\r\n\r\n", 400),  # no host
        (LOOKUP + b"Content-Length: -1\r\n\r\n", 400),
        (LOOKUP + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (LOOKUP + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (LOOKUP + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (LOOKUP + b"Content-Length: 9999999999\r\n\r\n", 413),
        (LOOKUP + b"X: " + b"x" * 100_000, 431),
        (b"PUT /v1/lookup HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /v1/lookup HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /v1/../v1/stats HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    ],
)
def test_a_malformed_request_is_rejected(place: Path, data: bytes, status: int) -> None:
    answer = ask(place, data)
    assert answer.status == status and json.loads(answer.body)["error"]


@pytest.mark.usefixtures("client")
def test_a_body_over_the_limit_is_rejected_and_one_at_it_is_not(place: Path) -> None:
    head, tail = f'{{"namespace": "{SPACE.digest.hex()}", "keys": ["{KEY}"'.encode(), b"]}"
    keys = b", " + b'"%s"' % KEY.encode()
    body = head + keys * ((MOST_BODY - len(head) - len(tail)) // len(keys)) + tail
    body += b" " * (MOST_BODY - len(body))
    assert request(place, "POST", "/v1/lookup", body).status == 200
    assert request(place, "POST", "/v1/lookup", body + b" ").status == 413
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    assert ask(place, LOOKUP + b"Transfer-Encoding: chunked\r\n\r\n" + 17 * chunk).status == 413


def raw(place: Path, data: bytes) -> bytes:
    """Returns all bytes of the response."""
    with connected(place) as caller:
        caller.sendall(data)
        return b"".join(iter(lambda: caller.recv(1 << 16), b""))


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/v1/stats"])
def test_a_head_gets_the_headers_of_a_get(place: Path, path: str) -> None:
    head = raw(place, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert head.startswith(b"HTTP/1.1 200 ") and head.endswith(b"\r\n\r\n")
    assert b"\r\nDate: " in head and b"\r\nContent-Length: 0\r\n" not in head


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(("path", "allowed"), [("/healthz", "GET, HEAD"), ("/v1/lookup", "POST")])
def test_a_wrong_method_is_answered_with_those_that_are_allowed(place: Path, path: str, allowed: str) -> None:
    answer = request(place, "DELETE", path)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("target", [b"http://host/healthz", b"HTTPS://host:1/healthz?x=//y", b"/healthz?x"])
def test_a_target_may_be_a_whole_url(place: Path, target: bytes) -> None:
    assert raw(place, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200")


def connected(place: Path) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(PATIENCE_S)
    caller.connect(str(place))
    return caller


@pytest.mark.usefixtures("client")
def test_silent_callers_keep_nobody_out(daemon: RunningDaemon, place: Path) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(place)) for _ in range(3 * MOST_OF_CALLER)]
        assert call(place, "POST", "/v1/lookup", GOOD)[0] == 200
        assert silent[0].recv(1) == b"", "the oldest made room"
        silent[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[-1].recv(1 << 16).startswith(b"HTTP/1.1 200 "), "a young one did not"
    assert daemon.lines("the oldest without a whole request is closed")


@pytest.mark.usefixtures("client")
def test_a_long_lookup_keeps_nobody_waiting(place: Path) -> None:
    """Both answers may have come before this process looks, but not each time."""
    assert any(is_overtaken_by_a_short_call(place) for _ in range(20))


def is_overtaken_by_a_short_call(place: Path) -> bool:
    """Makes a long lookup, and returns whether a call that comes later is answered while it has no answer."""
    body = json.dumps(SINGLE | {"tokens": [1] * MOST_PAGES}).encode()
    with connected(place) as long, connected(place) as short, DefaultSelector() as selector:
        long.sendall(LOOKUP + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        short.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        for caller in (long, short):
            selector.register(caller, EVENT_READ)
        overtaken = [key.fileobj for key, _ in selector.select(PATIENCE_S)] == [short]
        assert long.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
    return overtaken


def test_a_caller_that_waits_for_leave_to_send_gets_it(place: Path, client: Client) -> None:
    body = json.dumps(GOOD).encode()
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(PATIENCE_S)
        caller.connect(str(place))
        caller.sendall(LOOKUP + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        caller.sendall(body)
        assert caller.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


SLOW = LOOKUP + b"Content-Length: 1000\r\n\r\n{"


def test_slow_callers_delay_nobody(place: Path, client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(connected(place)).sendall(SLOW)
        assert call(place, "POST", "/v1/lookup", GOOD)[0] == 200


async def respond(request: Request) -> Response:
    return Response(request.body)


async def respond_late(request: Request) -> Response:
    await loop_clock.pause(ANSWER_S)
    return Response(b"late")


async def new_caller(
    connections: Connections, respond: Callable[[Request], Awaitable[Response]] = respond
) -> socket.socket:
    """Returns a caller of this process, whose calls never wait."""
    ours, caller = socket.socketpair()
    caller.setblocking(False)
    opened = OpenConnections(Entrance.METRICS, connections)
    await asyncio.get_running_loop().connect_accepted_socket(lambda: HttpConnection(opened, respond), ours)
    return caller


@pytest.mark.usefixtures("virtual_time")
async def test_a_slow_caller_is_cut_off() -> None:
    with await new_caller(Connections()) as caller:
        caller.sendall(SLOW)
        await loop_clock.pause(9.9)  # of the ten seconds of docs/http.md
        with pytest.raises(BlockingIOError):
            caller.recv(1)
        await loop_clock.pause(0.2)
        with suppress(ConnectionResetError):
            assert caller.recv(1) == b""


@pytest.mark.usefixtures("virtual_time")
async def test_a_caller_gets_the_response_to_a_request_that_arrived_however_late_it_is() -> None:
    """A daemon that does not answer is a response, too: it comes after ANSWER_S."""
    with await new_caller(Connections(), respond_late) as caller:
        caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        await loop_clock.pause(9.0)
        caller.sendall(b"\r\n")
        await loop_clock.pause(ANSWER_S + 0.1)
        assert caller.recv(1 << 16).endswith(b"\r\n\r\nlate")


async def test_a_caller_that_leaves_counts_no_more_at_once(virtual_time: OwnTimeLoop) -> None:
    connections = Connections()
    key = (Entrance.METRICS, os.geteuid())
    with await new_caller(connections):
        assert connections.counts(key) == (1, 1)
    await see_peers_off()
    assert connections.counts(key) == (0, 0) and virtual_time.time() == 0.0
