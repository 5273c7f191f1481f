"""The callers of the HTTP interface: how many there may be, and what each of them may do."""

from __future__ import annotations

import hmac
import logging
import os
import socket
from collections import Counter
from typing import Final

import msgspec

from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.daemon.host.peer_credentials import Caller, Rights, caller_of, rights_of
from pagetier.daemon.http.channel_messages import Entrance, Settings
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

MOST: Final = 96
MOST_OF_CALLER: Final = 32
_BEARER: Final = "Bearer "
_SAYS: Final = "there are %d HTTP connections, %d of this caller: the next one is closed"


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
        token = authorization.removeprefix(_BEARER) if authorization.startswith(_BEARER) else ""
        valid = hmac.compare_digest(token.encode("latin-1"), settings.token.encode("latin-1"))
        return Rights.ATTACH if self.entrance is Entrance.PORT and settings.token and valid else Rights.NOTHING


class OpenConnections:
    """Counts the open connections of one listening socket's callers. On the loop's thread."""

    def __init__(self, entrance: Entrance, counts: Counter[tuple[Entrance, int]]) -> None:
        self._entrance = entrance
        self._counts = counts
        self._throttle = LogThrottle(log)

    def enter(self, connection: socket.socket) -> HttpCaller | None:
        """Returns the peer of a new connection, which is counted; None if there is no room for it."""
        peer = HttpCaller(self._entrance, caller_of(connection) if self._entrance is Entrance.SOCKET else None)
        key = self._key(peer)
        if self._counts.total() >= MOST or self._counts[key] >= MOST_OF_CALLER:
            facts = event("http_full", open=self._counts.total())
            self._throttle.log(
                logging.WARNING, UNKNOWN_USER, _SAYS, self._counts.total(), self._counts[key], extra=facts
            )
            return None
        self._counts[key] += 1
        return peer

    def leave(self, peer: HttpCaller) -> None:
        """Stops counting a connection, which is closed."""
        self._counts[self._key(peer)] -= 1

    @staticmethod
    def _key(peer: HttpCaller) -> tuple[Entrance, int]:
        return peer.entrance, peer.user
