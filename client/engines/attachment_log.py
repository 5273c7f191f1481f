"""Writes to an engine's log: one line when it is attached to a daemon, when it is not, and when it is again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from pagetier.client.engines.switch import SettingsOrigin
from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.shm._core import Session
from pagetier.shm.client_socket import nothing_listens
from pagetier.shm.protocol import DISK, POPULATING
from pagetier.shm.units import format_size

_NOTHING: Final = "nothing is cached"


class AttachmentLog:
    """Logs the attachment of one process of an engine. Thread-safe: the client reports from a thread of its own.

    Args:
        log: The engine's log.
        origin: Where the engine's settings are from.
    """

    def __init__(self, log: logging.Logger, origin: SettingsOrigin) -> None:
        self._log, self._origin = log, origin
        self._lock = threading.Lock()
        self._event: LinkEvent | None = None
        self._describe: Callable[[LinkEvent], str] | None = None
        self._word = "attached"
        self._maps_pages = False

    def on_link(self, event: LinkEvent) -> None:
        """Logs a change of the connection. An attachment is logged once its namespaces are known."""
        with self._lock:
            self._event = event
            if event.state is LinkState.ATTACHED:
                self._maps_pages = True
                self._log_attached()
            else:
                level = logging.INFO if _passes_by_itself(event) else logging.WARNING
                self._log.log(level, "pagetier %s", self._consequence(event))

    def on_rejected(self, event: LinkEvent) -> None:
        """Logs that the process was rejected, and nothing else: another process of the engine logs the rest for all."""
        if event.state is LinkState.REJECTED and not _passes_by_itself(event):
            self._log.warning("pagetier %s", self._consequence(event))

    def opened(self, describe: Callable[[LinkEvent], str]) -> None:
        """Logs the attachment if there is one: from now on `describe` returns what the engine caches of it."""
        with self._lock:
            self._describe = describe
            self._log_attached()

    def _log_attached(self) -> None:
        event = self._event
        if self._describe is None or event is None or event.state is not LinkState.ATTACHED:
            return
        self._log.info("pagetier %s to %s: %s%s", self._word, event.detail, self._describe(event), self._origin.remark)
        self._word = "attached again"

    def _consequence(self, event: LinkEvent) -> str:
        place, remark = self._origin.place, self._origin.remark
        lacking = (
            "nothing is stored, and only pages that are still mapped are loaded," if self._maps_pages else _NOTHING
        )
        match event.state:
            case LinkState.LOST:
                return f"lost its daemon: {event.detail}; nothing is stored until it is back"
            case LinkState.REJECTED:
                return f"is not attached: {event.detail}; {lacking} until the daemon accepts this engine{remark}"
            case _:
                start = f': start pagetierd, or, if it has another socket, set "socket" in {place}'
                # Other reasons name their own remedy, or a daemon that is there and may answer yet.
                advice = start if nothing_listens(event.detail) else ""
                return f"is not attached: {event.detail}; {lacking} until a daemon answers{advice}{remark}"


def _passes_by_itself(event: LinkEvent) -> bool:
    return event.state is LinkState.REJECTED and event.detail.endswith(POPULATING)


def describe_memory(session: Session | None, event: LinkEvent) -> str:
    """Returns the sizes of the arena and of the disk tier, which the daemon may still be opening."""
    arena, nbytes = (session.arena_bytes, session.disk_bytes) if session is not None else (0, 0)
    without = "disk opening" if DISK in event.extras else "no disk"
    return f"arena {format_size(arena)}, {f'disk {format_size(nbytes)}' if nbytes else without}"
