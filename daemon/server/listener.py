"""Who comes to a listening socket: let in, a few at a time; while descriptors are short they wait in its queue."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from pagetier.daemon.common.descriptor_limit import reason_with_limit
from pagetier.daemon.common.log_throttle import NOBODY, LogThrottle
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

# All that the loop takes at once have descriptors for two turns, also those who are turned away.
_AT_ONCE: Final = 128
_PAUSE_S: Final = 1.0  # as long as asyncio waits


class Accepting:
    """Lets in who comes, from the constructor to close(), which leaves alone who is there. On the loop's thread.

    asyncio's own server logs a traceback for each one whom it has no descriptor for. This says it in a line.
    """

    def __init__(
        self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol], at_once: int = _AT_ONCE
    ) -> None:
        self._listening = listening
        self._protocol = protocol
        self._at_once = at_once
        self._loop = asyncio.get_running_loop()
        self._complaints = LogThrottle(log)
        self._begun: set[asyncio.Task[object]] = set()
        self._again: asyncio.TimerHandle | None = None
        listening.settimeout(0.0)
        self._listen()

    def close(self) -> None:
        """Nobody comes any more."""
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
        """Who waits keeps the socket readable: the loop would turn for nothing else."""
        self._loop.remove_reader(self._listening)
        self._again = self._loop.call_later(_PAUSE_S, self._listen)
        line = "nobody can connect for a moment%s"
        self._complaints.tell(logging.WARNING, NOBODY, line, reason_with_limit(error), extra=event("descriptors"))
