"""Tests who may do what: users at a socket, and tokens at a port."""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eventually import eventually
from free_ports import free_ports
from http_calls import call, request
from other_users import ALICE, MALLORY, as_root, output_as
from pagetier.shm.exit_codes import Exit
from refused_starts import pagetierd
from running_daemon import RunningDaemon, namespace

SPACE = namespace()
TOKEN, NEXT = "first-token-of-this-test", "second-token-of-this-test"
REBOUND = "the header Host names another site (DNS rebinding)"
PAGES = {"namespace": SPACE.name, "tokens": list(range(16))}
CALL = """
body = {body!r}
with socket.socket(socket.AF_UNIX) as caller:
    caller.connect(sys.argv[1])
    caller.sendall(b"{method} {path} HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    print(b"".join(iter(lambda: caller.recv(1 << 16), b"")).split()[1].decode())
"""


def status_as(user: int, place: Path, method: str, path: str, body: object = None) -> int:
    """Returns the status of the response to a request of another user."""
    data = b"" if body is None else json.dumps(body).encode()
    code, output = output_as(user, "import socket", CALL.format(body=data, method=method, path=path), str(place))
    assert code == 0, output
    return int(output)


@contextmanager
def configured(access: str) -> Iterator[tuple[RunningDaemon, Path, str]]:
    """Yields a daemon with these settings of `access`, its socket for HTTP, and its file without them."""
    with RunningDaemon("1MiB", "64KiB") as daemon:
        folder = Path(daemon.folder.name)
        folder.chmod(0o755)
        place = folder / "http.sock"
        daemon.stop()
        fixed = f'[http]\nlisten = "{place}"\n[access]\nsocket_mode = "0666"\n'
        daemon.config.write_text(fixed + access)
        daemon.start()
        yield daemon, place, fixed


@as_root
def test_users_may_do_over_http_what_they_may_do_over_the_control_socket() -> None:
    with configured(f"users = [{ALICE}]\nwatch_users = [{MALLORY}]\n") as (daemon, place, _):
        assert stat.S_IMODE(place.stat().st_mode) == 0o666
        with daemon.client() as client:
            client.store(SPACE.keys(range(16)), [bytes(100)])
        for path in ("/v1/stats", "/"):
            assert [status_as(user, place, "GET", path) for user in (ALICE, MALLORY, ALICE + 2)] == [200, 200, 403]
        found = [status_as(user, place, "POST", "/v1/lookup", PAGES) for user in (ALICE, MALLORY, ALICE + 2)]
        assert found == [200, 200, 403]
        read = [status_as(user, place, "POST", "/v1/prefetch", PAGES) for user in (ALICE, MALLORY)]
        assert read == [202, 403]
        hint = PAGES | {"hint": "over"}
        assert [status_as(user, place, "POST", "/v1/hint", hint) for user in (ALICE, MALLORY)] == [200, 403]
        number = call(place, "POST", "/v1/prefetch", PAGES)[1]["id"]
        assert status_as(ALICE, place, "GET", f"/v1/prefetch/{number}") == 404
        assert status_as(ALICE + 2, place, "GET", "/healthz") == 200


@as_root
def test_a_reload_changes_what_users_may_do() -> None:
    with configured("") as (daemon, place, fixed):
        assert status_as(ALICE, place, "GET", "/v1/stats") == 403
        daemon.reload(f"{fixed}watch_users = [{ALICE}]\n")
        assert eventually(lambda: status_as(ALICE, place, "GET", "/v1/stats") == 200)


@as_root
def test_with_authorize_by_socket_all_who_can_connect_may_attach() -> None:
    with configured('authorize_by = "socket"\n') as (daemon, place, fixed):
        with daemon.client() as client:
            client.store(SPACE.keys(range(16)), [bytes(100)])
        assert [status_as(user, place, "POST", "/v1/prefetch", PAGES) for user in (ALICE, MALLORY)] == [202, 202]
        daemon.reload(fixed)
        assert eventually(lambda: status_as(ALICE, place, "POST", "/v1/prefetch", PAGES) == 403)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def port_and_daemon(token_file: Path) -> Iterator[tuple[int, RunningDaemon]]:
    (port,) = free_ports(1)
    options = ("--set", f"http.listen={port}", "--set", f"http.token_file={token_file}")
    with RunningDaemon("1MiB", "64KiB", *options) as daemon:
        yield port, daemon


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_port_needs_the_token(port_and_daemon: tuple[int, RunningDaemon], token_file: Path) -> None:
    port, daemon = port_and_daemon
    with daemon.client() as client:
        client.store(SPACE.keys(range(16)), [bytes(100)])
    assert call(port, "GET", "/healthz")[0] == 200
    for headers in ({}, bearer(NEXT), bearer(""), {"Authorization": TOKEN}, {"Authorization": "Basic eDp5"}):
        assert call(port, "GET", "/v1/stats", headers=headers)[0] == 401
        assert call(port, "POST", "/v1/prefetch", PAGES, headers)[0] == 401
    for headers, why in (({}, "missing"), (bearer(""), "missing"), (bearer(NEXT), "wrong"), (bearer("x"), "wrong")):
        said = call(port, "GET", "/v1/stats", headers=headers)[1]["error"]
        assert said.startswith(f"the token is {why}: ") and "http.token_file" in said, "and no more"
    for scheme in ("Bearer", "bearer", "BEARER"):  # RFC 9110, 11.1: in any case
        assert call(port, "GET", "/v1/stats", headers={"Authorization": f"{scheme} {TOKEN}"})[0] == 200
    refused = request(port, "GET", "/v1/stats", headers=bearer(NEXT) | {"authorization": f"Bearer {TOKEN}"})
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer"), "neither of two tokens counts"
    status, accepted = call(port, "POST", "/v1/prefetch", PAGES, bearer(TOKEN))
    assert status == 202
    assert call(port, "GET", f"/v1/prefetch/{accepted['id']}")[0] == 401
    assert call(port, "GET", f"/v1/prefetch/{accepted['id']}", headers=bearer(TOKEN))[0] == 200
    token_file.write_text(NEXT)
    daemon.reload("")
    assert eventually(lambda: call(port, "GET", "/v1/stats", headers=bearer(NEXT))[0] == 200)
    assert call(port, "GET", "/v1/stats", headers=bearer(TOKEN))[0] == 401
    token_file.chmod(0o644)
    daemon.reload("", "event=token_refused")
    assert call(port, "GET", "/v1/stats", headers=bearer(NEXT))[0] == 200


def test_a_web_page_may_send_no_post_request(tmp_path: Path) -> None:
    """A browser adds Origin to each POST, also to those that a page of another site makes through a tunnel."""
    place, page = tmp_path / "http.sock", {"Origin": "https://example.org"}
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}"):
        for path in ("/v1/hint", "/v1/prefetch", "/v1/lookup"):
            assert call(place, "POST", path, PAGES, page)[0] == 403
        assert call(place, "GET", "/v1/stats", headers=page)[0] == 200


def test_a_site_that_points_its_name_at_a_tunnel_reads_nothing(tmp_path: Path) -> None:
    place = tmp_path / "http.sock"
    own = ("localhost", "LOCALHOST:9470", "page.localhost:80", "daemon", "gpu-1:9470", "127.0.0.1:9470", "::1")
    foreign = ("example.org", "example.org:9470", "localhost.example.org", "127.0.0.1.example.org", "ai.", "[a.b]:1")
    with RunningDaemon("1MiB", "64KiB", "--set", f"http.listen={place}"):
        for host in (*own, "[::1]:9470", "10.0.0.7"):
            assert call(place, "GET", "/v1/stats", headers={"Host": host})[0] == 200, host
        for host, path in itertools.product(foreign, ("/", "/v1/stats", "/v1/openapi.json", "/v1/prefetch/1")):
            status, body = call(place, "GET", path, headers={"Host": host})
            assert (status, body["error"].partition(":")[0]) == (421, REBOUND), (host, path)
        for path in ("/healthz", "/metrics"):
            assert request(place, "GET", path, headers={"Host": "example.org"}).status == 200


def test_a_port_serves_every_name_that_comes_with_the_token(port_and_daemon: tuple[int, RunningDaemon]) -> None:
    port, _ = port_and_daemon
    assert call(port, "GET", "/v1/stats", headers=bearer(TOKEN) | {"Host": "gpu-1.example.org"})[0] == 200
    assert call(port, "GET", "/v1/stats", headers={"Host": "gpu-1.example.org"})[0] == 401


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (None, 0o600, "cannot be read: No such file"),
        ("short", 0o600, "has no token of 16 to 512 visible ASCII characters"),
        ("a token with some spaces", 0o600, "has no token of 16 to 512 visible ASCII characters"),
        (TOKEN, 0o640, "is open to other users: chmod 600 it"),
    ],
)
def test_a_daemon_without_a_safe_token_does_not_start(
    given: list[str], tmp_path: Path, text: str | None, mode: int, words: str
) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        os.chmod(file, mode)  # noqa: PTH101
    ended = pagetierd(*given, "--set", f"http.listen={free_ports(1)[0]}", "--set", f"http.token_file={file}")
    assert (ended.code, words in ended.text) == (Exit.USAGE, True), ended.text


def test_a_port_without_a_token_file_is_refused(given: list[str]) -> None:
    ended = pagetierd(*given, "--set", "http.listen=9470")
    words = "http.listen = 127.0.0.1:9470 (flag --set http.listen) is a port, which needs a token: set http.token_file"
    assert (ended.code, words in ended.text) == (Exit.USAGE, True), ended.text
