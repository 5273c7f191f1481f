"""One HTTP connection: reads a request with h11 within limits, answers it, and closes the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import h11
import msgspec

from pagetier.daemon.http.peers import HttpCaller, OpenConnections

MOST_BODY: Final = 1 << 20
REQUEST_S: Final = 10.0  # for a request to arrive, and again for its response to be read
_RESPONSE_S: Final = 60.0  # for a response to be made: the daemon may take ten, and lists of pages wait for each other
_LINGER_S: Final = 2.0  # after a response to a request that was not read to its end


class HttpError(Exception):
    """The request cannot be answered; the message is one sentence that says why.

    Attributes:
        status: The status of the response.
        headers: The headers that RFC 9110 asks for with this status.
    """

    def __init__(self, status: HTTPStatus, why: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(why)
        self.status, self.headers = status, headers


class Request(msgspec.Struct, frozen=True):
    """A complete request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: HttpCaller


class Response(msgspec.Struct, frozen=True):
    """A response. Its body is JSON unless `kind` says otherwise."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    kind: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every response that is an error.

    Attributes:
        error: What is wrong, in one sentence.
    """

    error: str


def error_response(error: HttpError) -> Response:
    """Returns a response that says in one sentence what is wrong."""
    return Response(msgspec.json.encode(ErrorBody(str(error))), error.status, headers=error.headers)


class HttpConnection(asyncio.Protocol):
    """One connection, with one request. `respond` answers it and raises nothing."""

    def __init__(
        self,
        connections: OpenConnections,
        respond: Callable[[Request], Awaitable[Response]],
        patience: float = REQUEST_S,
    ) -> None:
        self._connections = connections
        self._respond = respond
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER)
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._peer: HttpCaller | None = None
        self._late: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False  # no more of the request is read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the connection at once if there are too many, else if no request arrives in time."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._close = transport.abort
        self._peer = self._connections.enter(transport.get_extra_info("socket"), self._close)
        if self._peer is None:
            transport.abort()
        else:
            self._end_within(self._patience)

    def _end_within(self, seconds: float) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self._loop.call_later(seconds, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops counting the connection."""
        if self._late is not None:
            self._late.cancel()
        if self._task is not None:
            self._task.cancel()
        self._connections.leave(self._close)

    def data_received(self, data: bytes) -> None:
        """Reads the request; whatever follows it is discarded."""
        if self._ended:
            return
        try:
            self._http.receive_data(data)
            self._read()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            self._fail(HttpError(status, f"this is not a valid HTTP/1.1 request: {error}"))
        except HttpError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        """Keeps the connection open for the response to a complete request."""
        self.data_received(b"")
        return self._task is not None

    def _read(self) -> None:
        while True:
            match self._http.next_event():
                case h11.Request() as head:
                    self._check_length(head)
                    self._head = head
                    if self._http.they_are_waiting_for_100_continue:
                        self._write(h11.InformationalResponse(status_code=100, headers=[]))
                case h11.Data(data=data):
                    self._body += data
                    if len(self._body) > MOST_BODY:
                        raise _too_large()
                case h11.EndOfMessage():
                    self._ended = True
                    self._connections.arrived(self._close)
                    self._end_within(_RESPONSE_S)
                    self._task = self._loop.create_task(self._answer())
                    return
                case _:
                    return

    @staticmethod
    def _check_length(head: h11.Request) -> None:
        lengths = [value for name, value in head.headers if name == b"content-length"]
        if any(len(value) > len(str(MOST_BODY)) or int(value) > MOST_BODY for value in lengths):
            raise _too_large()

    async def _answer(self) -> None:
        assert self._head is not None and self._peer is not None
        headers = _combined(self._head.headers)
        path = _path(self._head.target.decode("latin-1"))
        method = self._head.method.decode("latin-1")
        response = await self._respond(Request(method, path, headers, bytes(self._body), self._peer))
        self._send(response)
        self._transport.close()
        self._end_within(self._patience)

    def _fail(self, error: HttpError) -> None:
        """Answers a request that was not read to its end.

        The connection is closed a little later: a peer that still sends would lose the response otherwise.
        """
        self._ended = True
        self._send(error_response(error))
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._end_within(_LINGER_S)

    def _send(self, response: Response) -> None:
        headers = [
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", response.kind),
            ("Content-Length", str(len(response.body))),
            ("Connection", "close"),
            *response.headers,
        ]
        self._write(h11.Response(status_code=response.status.value, reason=response.status.phrase, headers=headers))
        if self._head is None or self._head.method != b"HEAD":
            self._write(h11.Data(data=response.body))
        self._write(h11.EndOfMessage())

    def _write(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._transport.write(self._http.send(event) or b"")


def _path(target: str) -> str:
    """Returns the path of a request's target, which a proxy may send as a whole URL (RFC 9112, 3.2.2)."""
    scheme, _, rest = target.partition("://")
    if scheme.lower() in ("http", "https"):
        target = "/" + rest.partition("/")[2]
    return target.partition("?")[0]


def _combined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns headers by name. Values of a repeated header are one list (RFC 9110, 5.2), none is preferred."""
    combined: dict[str, str] = {}
    for name, value in headers:
        before = combined.get(name.decode("latin-1"))
        combined[name.decode("latin-1")] = ("" if before is None else before + ", ") + value.decode("latin-1")
    return combined


def _too_large() -> HttpError:
    return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MOST_BODY} bytes: ask for fewer pages")
