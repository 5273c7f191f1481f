"""Calls a daemon's HTTP interface."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from eventually import eventually
from metrics_scrape import Answer, ask
from process_states import children_of
from running_daemon import RunningDaemon


def http_process(daemon: RunningDaemon) -> int:
    """Returns the PID of a daemon's HTTP process, which may have been started a moment ago."""
    found = eventually(lambda: _http_processes(daemon.pid))
    assert found, daemon.log.read_text()
    return found[0]


def _http_processes(parent: int) -> list[int]:
    return [pid for pid in children_of(parent) if _name_of(pid) == "pagetier-http\n"]


def _name_of(pid: int) -> str:
    """Returns the name of a process; nothing if it has just ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def call(
    address: Path | int, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Returns the status and the decoded body of the response to a request with a JSON body."""
    answer = request(address, method, path, b"" if body is None else msgspec.json.encode(body), headers)
    return answer.status, msgspec.json.decode(answer.body)


def request(
    address: Path | int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Answer:
    """Returns the response to a request."""
    lines = {"Host": "test", "Content-Length": str(len(body))} | (headers or {})
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return ask(address, head.encode("latin-1") + b"\r\n" + body)
