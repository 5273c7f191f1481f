"""One HTTP connection of a scrape, limited to what Prometheus needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

# Each Prometheus server has one connection at a time.
MOST: Final = 32


class OpenConnections:
    """Counts open connections. On the loop's thread."""

    def __init__(self) -> None:
        self._open = 0
        self._throttle = LogThrottle(log)

    def enter(self) -> bool:
        """Returns whether there is room for another connection, and counts it; logs a warning if there is none."""
        if self._open >= MOST:
            facts = event("metrics_full", open=MOST)
            line = "a connection to the metrics is closed: %d are open, the most for this daemon"
            self._throttle.log(logging.WARNING, UNKNOWN_USER, line, MOST, extra=facts)
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """Stops counting a connection, which is closed."""
        self._open -= 1


PATIENCE_S = 5.0
_MOST_BYTES = 16 << 10
_END = b"\r\n\r\n"


class Page(msgspec.Struct, frozen=True):
    """An HTTP response."""

    status: HTTPStatus
    kind: str
    body: bytes

    def pack(self) -> bytes:
        """Returns the response with its header. The connection is closed after it."""
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + _END + self.body


def plain(status: HTTPStatus, text: str) -> Page:
    """Returns a response that is one sentence."""
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class ScrapeConnection(asyncio.Protocol):
    """Reads one request, answers it and closes the connection. `render` returns the page for an Accept header."""

    def __init__(self, guests: OpenConnections, render: Callable[[str], Page], patience: float = PATIENCE_S) -> None:
        self._connections = guests
        self._render = render
        self._patience = patience
        self._request = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the connection at once if there are too many, else if no request arrives within a few seconds."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._connections.enter():
            self._late = asyncio.get_running_loop().call_later(self._patience, transport.abort)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops counting the connection."""
        if self._late is not None:
            self._late.cancel()
            self._connections.leave()

    def data_received(self, data: bytes) -> None:
        """Answers when the header of the request is complete; a body is ignored."""
        if self._transport.is_closing():
            return
        self._request += data
        if _END in self._request:
            self._end(self._answer(self._request.partition(_END)[0].decode("latin-1")))
        elif len(self._request) > _MOST_BYTES:
            self._end(plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request header is too large"))

    def _answer(self, head: str) -> Page:
        first, *lines = head.split("\r\n")
        words = first.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return plain(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request")
        if words[0] != "GET":
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET /metrics is supported")
        if words[1].partition("?")[0] != "/metrics":
            return plain(HTTPStatus.NOT_FOUND, "the metrics are at /metrics")
        return self._render(_header(lines, "accept"))

    def _end(self, page: Page) -> None:
        self._transport.write(page.pack())
        self._transport.close()


def _header(lines: list[str], wanted: str) -> str:
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip().lower() == wanted:
            return value.strip()
    return ""
