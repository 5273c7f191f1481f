"""Writes to an engine's log: one line when it is attached to a daemon, when it is not, and when it is again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.shm._core import Session

_GIB: Final = 1 << 30


class AttachmentLog:
    """Logs the attachment of one process of an engine. Thread-safe: the client reports from a thread of its own.

    Args:
        log: The engine's log.
        place: The engine's option that contains the setting `socket`.
    """

    def __init__(self, log: logging.Logger, place: str) -> None:
        self._log, self._place = log, place
        self._lock = threading.Lock()
        self._event: LinkEvent | None = None
        self._describe: Callable[[], str] | None = None
        self._word = "attached"

    def on_link(self, event: LinkEvent) -> None:
        """Logs a change of the connection. An attachment is logged once its namespaces are known."""
        with self._lock:
            self._event = event
            if event.state is LinkState.ATTACHED:
                self._log_attached()
            else:
                self._log.warning("pagetier %s", self._consequence(event))

    def on_rejected(self, event: LinkEvent) -> None:
        """Logs that the process was rejected, and nothing else: another process of the engine logs the rest for all."""
        if event.state is LinkState.REJECTED:
            self._log.warning("pagetier %s", self._consequence(event))

    def opened(self, describe: Callable[[], str]) -> None:
        """Logs the attachment if there is one: from now on `describe` returns what the engine caches."""
        with self._lock:
            self._describe = describe
            self._log_attached()

    def _log_attached(self) -> None:
        if self._describe is None or self._event is None or self._event.state is not LinkState.ATTACHED:
            return
        self._log.info("pagetier %s to %s: %s", self._word, self._event.detail, self._describe())
        self._word = "attached again"

    def _consequence(self, event: LinkEvent) -> str:
        match event.state:
            case LinkState.LOST:
                return f"lost its daemon: {event.detail}; nothing is stored until it is back"
            case LinkState.REJECTED:
                return f"is not attached: {event.detail}; nothing is cached until the daemon accepts this engine"
            case _:
                return (
                    f"is not attached: {event.detail}; nothing is cached until a daemon answers: start pagetierd there,"
                    f' or set "socket" in {self._place}'
                )


def describe_memory(session: Session | None) -> str:
    """Returns the sizes of the arena and of the disk tier, which the daemon may still be opening."""
    arena, disk = (session.arena_bytes, session.disk_bytes) if session is not None else (0, 0)
    return f"arena {arena / _GIB:.3g} GiB, {f'disk {disk / _GIB:.3g} GiB' if disk else 'no disk tier open'}"
