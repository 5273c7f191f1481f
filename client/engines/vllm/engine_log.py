"""Writes to vLLM's log: one line when an engine is attached to a daemon, when it is not, and when it is again."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from pagetier.client.engines.vllm.group_kinds import UnsupportedError
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.kernels.layout.cache_layout import LayoutError
from pagetier.shm._core import Session

log = logging.getLogger("vllm.pagetier")

_GIB: Final = 1 << 30


class VllmHandler(logging.Handler):
    """Passes records of pagetier's own loggers to vLLM's log, which has a handler for its own loggers only."""

    def emit(self, record: logging.LogRecord) -> None:
        """Passes one record."""
        passed = copy.copy(record)
        passed.msg = f"pagetier: {record.msg}"
        log.handle(passed)


class AttachmentLog:
    """Logs the engine's attachment. Thread-safe: the client reports from a thread of its own."""

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
    """Logs that a worker was rejected. The scheduler's process logs everything else for all processes of the engine."""
    if event.state is LinkState.REJECTED:
        log.warning("pagetier %s", _consequence(event))


def log_unsupported(error: Exception) -> None:
    """Logs why nothing is cached. The trace of an error that is not foreseen is in the debug log."""
    foreseen = isinstance(error, (UnsupportedError, LayoutError))
    log.warning("pagetier caches nothing: %s", error if foreseen else repr(error))
    log.debug("pagetier caches nothing because of this exception", exc_info=error)


def route_logs() -> None:
    """Passes the records of pagetier's loggers to vLLM's log, unless the program has configured them itself."""
    ours = logging.getLogger("pagetier")
    if ours.handlers:
        return
    ours.addHandler(VllmHandler())
    ours.propagate = False
    if ours.level == logging.NOTSET:
        ours.setLevel(log.getEffectiveLevel())


def describe_cache(session: Session | None, groups: Sequence[PagedGroup], page_bytes: Sequence[int]) -> str:
    """Returns what an engine caches, and where.

    Args:
        session: The mapped segments.
        groups: The groups of the model.
        page_bytes: The size of a page of each group.
    """
    arena, disk = (session.arena_bytes, session.disk_bytes) if session is not None else (0, 0)
    count = f"{len(groups)} group{'s' * (len(groups) > 1)}"
    tokens = "/".join(map(str, sorted({group.kind.page_tokens for group in groups})))
    sizes = "/".join(f"{nbytes / 1024:g}" for nbytes in sorted(set(page_bytes)))
    return (
        f"arena {arena / _GIB:.3g} GiB, {f'disk {disk / _GIB:.3g} GiB' if disk else 'no disk'}, {count}, "
        f'pages of {tokens} tokens ({sizes} KiB), namespace "{groups[0].namespace.name}"'
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
                ' or set "socket" in kv_connector_extra_config'
            )
