"""The callers of the HTTP interface: how many there may be, and what each of them may do."""

from __future__ import annotations

import base64
import hmac
import logging
import os
import socket
from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.daemon.host.peer_credentials import Caller, Rights, caller_of, rights_of
from pagetier.daemon.http.channel_messages import Entrance, Settings
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

MOST: Final = 96
MOST_OF_CALLER: Final = 32
_BASIC: Final = "basic"
_BEARER: Final = "bearer"
_SAYS: Final = {
    False: "there are %d HTTP connections, %d of this caller: the next one is closed",
    True: "there are %d HTTP connections, %d of this caller: the oldest without a whole request is closed",
}
_Key = tuple[Entrance, int]


class HttpCaller(msgspec.Struct, frozen=True):
    """A caller. `caller` is what the kernel says of it, None at a port."""

    entrance: Entrance
    caller: Caller | None = None

    @property
    def user(self) -> int:
        """The user whose shares its requests count against: at a port that of the daemon."""
        return self.caller.uid if self.caller is not None else os.geteuid()

    def rights(self, settings: Settings, authorization: str) -> Rights:
        """Returns what the caller may do.

        Args:
            settings: The rules in force.
            authorization: The header of the request, "" if it has none.
        """
        if self.caller is not None:
            return rights_of(self.caller, settings.access)
        scheme, _, token = authorization.partition(" ")
        valid = scheme.lower() == _BEARER and hmac.compare_digest(
            token.encode("latin-1"), settings.token.encode("latin-1")
        )
        return Rights.ATTACH if self.entrance is Entrance.PORT and settings.token and valid else Rights.NOTHING


def has_token(authorization: str) -> bool:
    """Returns whether a header has some token, right or wrong."""
    scheme, _, token = authorization.partition(" ")
    return scheme.lower() == _BEARER and bool(token.strip())


def as_bearer(authorization: str) -> str:
    """Returns the password of HTTP Basic, which a browser can send, as a bearer token; other headers as they are."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != _BASIC:
        return authorization
    try:
        _, _, password = base64.b64decode(encoded, validate=True).decode("latin-1").partition(":")
    except ValueError:
        return ""
    return f"{_BEARER} {password}"


class Connections:
    """The open connections of all listening sockets. On the loop's thread.

    A connection is known by the function that closes it.
    """

    def __init__(self) -> None:
        self._callers: dict[Callable[[], None], _Key] = {}
        self._silent: dict[Callable[[], None], _Key] = {}  # those whose request has not arrived, oldest first

    def counts(self, caller: _Key) -> tuple[int, int]:
        """Returns the number of connections, and of those of one caller."""
        return len(self._callers), sum(each == caller for each in self._callers.values())

    def add(self, caller: _Key, close: Callable[[], None]) -> None:
        """Counts a connection, which has sent nothing yet."""
        self._callers[close] = self._silent[close] = caller

    def arrived(self, close: Callable[[], None]) -> None:
        """Notes that the whole request of a connection has arrived."""
        self._silent.pop(close, None)

    def remove(self, close: Callable[[], None]) -> None:
        """Stops counting a connection."""
        self._callers.pop(close, None)
        self._silent.pop(close, None)

    def close_silent(self, caller: _Key | None) -> bool:
        """Closes the oldest connection whose request has not arrived, of this caller; of any caller for None.

        Returns:
            False if there is none.
        """
        for close, its in self._silent.items():
            if caller in (None, its):
                self.remove(close)
                close()
                return True
        return False


class OpenConnections:
    """Counts the open connections of one listening socket's callers. On the loop's thread."""

    def __init__(self, entrance: Entrance, connections: Connections) -> None:
        self._entrance = entrance
        self._connections = connections
        self._throttle = LogThrottle(log)

    def enter(self, connection: socket.socket, close: Callable[[], None]) -> HttpCaller | None:
        """Returns the peer of a new connection, which is counted; None if there is no room for it.

        The oldest connection that has not sent a whole request makes room for it: silent ones keep no caller out.
        """
        peer = HttpCaller(self._entrance, caller_of(connection) if self._entrance is Entrance.SOCKET else None)
        caller = peer.entrance, peer.user
        total, own = self._connections.counts(caller)
        if own >= MOST_OF_CALLER or total >= MOST:
            made_room = self._connections.close_silent(caller if own >= MOST_OF_CALLER else None)
            facts = event("http_full", open=total)
            self._throttle.log(logging.WARNING, UNKNOWN_USER, _SAYS[made_room], total, own, extra=facts)
            if not made_room:
                return None
        self._connections.add(caller, close)
        return peer

    def arrived(self, close: Callable[[], None]) -> None:
        """Notes that the whole request of a connection has arrived."""
        self._connections.arrived(close)

    def leave(self, close: Callable[[], None]) -> None:
        """Stops counting a connection, which is closed."""
        self._connections.remove(close)
