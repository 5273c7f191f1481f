"""Accepts connections to a listening socket, a few at a time.

They wait in its queue while file descriptors are short.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from pagetier.daemon.common.descriptor_limit import reason_with_limit
from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

# There are descriptors for all connections that two iterations of the loop accept, including refused ones.
_AT_ONCE: Final = 128
_PAUSE_S: Final = 1.0  # as long as asyncio waits


class ConnectionAcceptor:
    """Accepts connections until close(), which keeps the accepted ones open. On the loop's thread.

    asyncio's own server logs a traceback for each connection that it has no descriptor for. This class logs one line.
    """

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], at_once: int = _AT_ONCE
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._throttle = LogThrottle(log)
        self._begun: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        listening.settimeout(0.0)
        self._listen()

    def close(self) -> None:
        """Stops accepting and closes the listening socket."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    def _listen(self) -> None:
        self._again = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(self._at_once):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._begin(connection)

    def _begin(self, connection: socket.socket) -> None:
        connection.settimeout(0.0)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._protocol, connection))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    def _pause(self, error: OSError) -> None:
        """Pauses: waiting connections keep the socket readable, so that the loop would spin."""
        self._loop.remove_reader(self._listening)
        self._again = self._loop.call_later(_PAUSE_S, self._listen)
        line = "new connections have to wait%s"
        self._throttle.log(logging.WARNING, UNKNOWN_USER, line, reason_with_limit(error), extra=event("descriptors"))
