"""The HTTP process's end of the socket pair: asks the daemon, and follows its settings."""

from __future__ import annotations

import asyncio
import itertools
import logging
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from pagetier.daemon.http.channel_messages import (
    DaemonAnswer,
    DaemonMessage,
    Events,
    ForUser,
    HttpRequest,
    Numbers,
    ServeHttp,
    Settings,
    TakeEvents,
    TakeNumbers,
    read_daemon_message,
)
from pagetier.daemon.http.http_connection import HttpError
from pagetier.daemon.http.notable_events import NotableEvent
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.shm.log_format import event
from pagetier.shm.message_codec import Unpacker, pack
from pagetier.shm.protocol import Fetch, Fetched, HintPages, PagesHinted, ProtocolError

log = logging.getLogger("pagetier.http")

ANSWER_S: Final = 10.0
_A = TypeVar("_A", Fetched, PagesHinted, Numbers, Events)


class DaemonChannel(asyncio.Protocol):
    """The connection to the daemon.

    Attributes:
        closed: Done when the daemon is gone.
        settings: The settings in force.

    Args:
        settings: Those of the daemon's first message.
        unpacker: Has what was received after it.
    """

    def __init__(self, settings: Settings, unpacker: Unpacker) -> None:
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.settings = settings
        self._unpacker = unpacker
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[DaemonAnswer]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles what was received before."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.data_received(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the process: the daemon is gone."""
        if not self.closed.done():
            self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Handles the daemon's messages."""
        try:
            for body in self._unpacker.feed(data):
                self._handle(read_daemon_message(body))
        except ProtocolError as error:
            log.error("the daemon sent an invalid message: %s", error, extra=event("http_invalid"))
            self._transport.abort()

    def _handle(self, message: DaemonMessage) -> None:
        match message:
            case Settings():
                self.settings = message
            case ServeHttp():
                raise ProtocolError("ServeHttp came twice")
            case _:
                waiting = self._waiting.pop(message.number, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)

    async def fetch(self, user: int, keys: bytes, timeout: float) -> Fetched:
        """Returns the outcome of each page, after at most `timeout` seconds. Raises HttpError."""
        number = next(self._numbers)
        return await self._ask(ForUser(user, Fetch(number, keys, timeout)), number, Fetched, timeout + ANSWER_S)

    async def hint(self, user: int, hint: HintPages) -> PagesHinted:
        """Returns to how many pages a hint applies, whose number this replaces. Raises HttpError."""
        number = next(self._numbers)
        request = ForUser(user, msgspec.structs.replace(hint, number=number))
        return await self._ask(request, number, PagesHinted, ANSWER_S)

    async def numbers(self) -> DaemonNumbers:
        """Returns the numbers that only the daemon knows. Raises HttpError."""
        number = next(self._numbers)
        return (await self._ask(TakeNumbers(number), number, Numbers, ANSWER_S)).numbers

    async def events(self) -> tuple[NotableEvent, ...]:
        """Returns the last notable events of the daemon's log, the latest first. Raises HttpError."""
        number = next(self._numbers)
        return (await self._ask(TakeEvents(number), number, Events, ANSWER_S)).events

    async def _ask(self, request: HttpRequest, number: int, kind: type[_A], timeout: float) -> _A:
        self._waiting[number] = self._loop.create_future()
        self._transport.write(pack(request))
        try:
            async with asyncio.timeout(timeout):
                answer = await self._waiting[number]
        except TimeoutError as error:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon does not answer") from error
        finally:
            self._waiting.pop(number, None)
        if not isinstance(answer, kind):
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "the daemon gave an answer of another kind")
        return answer
