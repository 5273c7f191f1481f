"""Writes to SGLang's log: one line when an engine is attached to a daemon, when it is not, and when it is again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from pagetier.client.engines.sglang.groups import EngineGroup
from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.shm._core import Session
from pagetier.shm.errors import PagetierError

log = logging.getLogger("pagetier.sglang")

_GIB: Final = 1 << 30


class LinkerLog:
    """Logs the attachment of one rank. Thread-safe: the client reports from a thread of its own."""

    def __init__(self) -> None:
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
                log.warning("pagetier %s", _consequence(event))

    def opened(self, describe: Callable[[], str]) -> None:
        """Logs the attachment if there is one: from now on `describe` returns what the engine caches."""
        with self._lock:
            self._describe = describe
            self._log_attached()

    def _log_attached(self) -> None:
        if self._describe is None or self._event is None or self._event.state is not LinkState.ATTACHED:
            return
        log.info("pagetier %s to %s: %s", self._word, self._event.detail, self._describe())
        self._word = "attached again"


def log_rejected(event: LinkEvent) -> None:
    """Logs that a rank was rejected. The first rank logs everything else for all ranks."""
    if event.state is LinkState.REJECTED:
        log.warning("pagetier %s", _consequence(event))


def log_unsupported(error: Exception) -> None:
    """Logs why nothing is cached. The trace of an error that is not foreseen is in the debug log."""
    foreseen = isinstance(error, (PagetierError, ValueError))
    log.warning("pagetier caches nothing: %s", error if foreseen else repr(error))
    log.debug("pagetier caches nothing because of this exception", exc_info=error)


def describe_cache(session: Session | None, groups: Sequence[EngineGroup]) -> str:
    """Returns what an engine caches, and where."""
    arena, disk = (session.arena_bytes, session.disk_bytes) if session is not None else (0, 0)
    sizes = ", ".join(f"{group.name} {group.cache.paged.page.nbytes / 1024:g} KiB" for group in groups)
    first = groups[0].cache
    return (
        f"arena {arena / _GIB:.3g} GiB, {f'disk {disk / _GIB:.3g} GiB' if disk else 'no disk'}, "
        f'pages of {first.page_tokens} tokens ({sizes}), namespace "{first.namespace.name}"'
    )


def _consequence(event: LinkEvent) -> str:
    match event.state:
        case LinkState.LOST:
            return f"lost its daemon: {event.detail}; nothing is stored until it is back"
        case LinkState.REJECTED:
            return f"is not attached: {event.detail}; nothing is cached until the daemon accepts this engine"
        case _:
            return (
                f"is not attached: {event.detail}; nothing is cached until a daemon answers: start pagetierd there,"
                ' or set "socket" in linker_extra_config'
            )
