"""One connection of somebody who scrapes: HTTP, as little of it as Prometheus needs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import NOBODY, LogThrottle
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

# Each Prometheus has one at a time.
MOST: Final = 32


class Guests:
    """Counts open connections. On the loop's thread."""

    def __init__(self) -> None:
        self._open = 0
        self._complaints = LogThrottle(log)

    def enter(self) -> bool:
        """Whether there is room for another one, which is counted then; the log is told where there is none."""
        if self._open >= MOST:
            facts = event("metrics_full", open=MOST)
            line = "a connection to the metrics is closed: there are %d"
            self._complaints.tell(logging.WARNING, NOBODY, line, MOST, extra=facts)
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """One that entered is closed."""
        self._open -= 1


PATIENCE_S = 5.0
_MOST_BYTES = 16 << 10
_END = b"\r\n\r\n"


class Page(msgspec.Struct, frozen=True):
    """What is answered."""

    status: HTTPStatus
    kind: str
    body: bytes

    def pack(self) -> bytes:
        """With its head; the connection ends behind it."""
        lines = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Connection: close",
        )
        return "\r\n".join(lines).encode() + _END + self.body


def plain(status: HTTPStatus, text: str) -> Page:
    """A sentence."""
    return Page(status, "text/plain; charset=utf-8", f"{text}\n".encode())


class Answering(asyncio.Protocol):
    """Reads one request, answers and hangs up. render: from the Accept header to a page."""

    def __init__(self, guests: Guests, render: Callable[[str], Page], patience: float = PATIENCE_S) -> None:
        self._guests = guests
        self._render = render
        self._patience = patience
        self._request = b""
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Who is one too many is hung up on at once, who says nothing for some seconds then."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._guests.enter():
            self._late = asyncio.get_running_loop().call_later(self._patience, transport.abort)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Over."""
        if self._late is not None:
            self._late.cancel()
            self._guests.leave()

    def data_received(self, data: bytes) -> None:
        """Answers when the head of the request is complete; its body, if it has one, is nothing to us."""
        if self._transport.is_closing():
            return
        self._request += data
        if _END in self._request:
            self._end(self._answer(self._request.partition(_END)[0].decode("latin-1")))
        elif len(self._request) > _MOST_BYTES:
            self._end(plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "that is too much"))

    def _answer(self, head: str) -> Page:
        first, *lines = head.split("\r\n")
        words = first.split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return plain(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1")
        if words[0] != "GET":
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET /metrics is all there is")
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
