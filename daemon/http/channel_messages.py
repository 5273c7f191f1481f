"""What the daemon and its HTTP process say to each other over their socket pair; encoded as in shm/message_codec.py."""

from __future__ import annotations

from enum import Enum
from typing import Final, TypeAlias

import msgspec

from pagetier.daemon.config.schema import AccessOptions
from pagetier.daemon.http.notable_events import NotableEvent
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.shm.message_codec import decode
from pagetier.shm.protocol import Fetch, Fetched, HintPages, PagesHinted


class _HttpMessage(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """A message, encoded as an array: the lower-case name of the class, then its fields."""


class Entrance(Enum):
    """How a listening socket identifies its callers."""

    SOCKET = "socket"
    """By the kernel: a Unix socket."""
    PORT = "port"
    """By a token; metrics and health need none."""
    METRICS = "metrics"
    """Not at all: only metrics and health are served."""


class Settings(_HttpMessage, frozen=True):
    """What a reload may change.

    Attributes:
        access: Who may do what.
        token: The token for ports, "" if there is none.
        has_disk: Whether there is a disk tier, which may not be open.
    """

    access: AccessOptions
    token: str = ""
    has_disk: bool = False


class ServeHttp(_HttpMessage, frozen=True):
    """The first message of the daemon. It comes with descriptors: index and lock words, read-only, and the sockets.

    Attributes:
        entrances: For each of the listening sockets, how it identifies its callers.
        namespaces: The number of namespaces that get their own metrics.
        settings: The settings in force.
    """

    entrances: tuple[Entrance, ...]
    namespaces: int
    settings: Settings


class ReadyToServe(_HttpMessage, frozen=True):
    """Says that the process ends with the daemon from now on, so that it may have the listening sockets.

    A process that outlived its daemon with them would keep the next daemon from its addresses.
    """


class ForUser(_HttpMessage, frozen=True):
    """A request of a user who may attach. It is answered by its number."""

    user: int
    request: Fetch | HintPages


class TakeNumbers(_HttpMessage, frozen=True):
    """Requests the numbers that only the daemon knows."""

    number: int


class Numbers(_HttpMessage, frozen=True):
    """Answers TakeNumbers."""

    number: int
    numbers: DaemonNumbers


class TakeEvents(_HttpMessage, frozen=True):
    """Requests the last notable events of the daemon's log."""

    number: int


class Events(_HttpMessage, frozen=True):
    """Answers TakeEvents, the latest event first."""

    number: int
    events: tuple[NotableEvent, ...]


HttpRequest: TypeAlias = ReadyToServe | ForUser | TakeNumbers | TakeEvents
DaemonAnswer: TypeAlias = Fetched | PagesHinted | Numbers | Events
DaemonMessage: TypeAlias = ServeHttp | Settings | DaemonAnswer
_requests: Final[msgspec.msgpack.Decoder[HttpRequest]] = msgspec.msgpack.Decoder(HttpRequest)
_messages: Final[msgspec.msgpack.Decoder[DaemonMessage]] = msgspec.msgpack.Decoder(DaemonMessage)


def read_http_request(body: bytes) -> HttpRequest:
    """Returns the request in the body of a message. Raises ProtocolError if it is not one."""
    return decode(_requests, body)


def read_daemon_message(body: bytes) -> DaemonMessage:
    """Returns the daemon's message. Raises ProtocolError if it is not one."""
    return decode(_messages, body)
