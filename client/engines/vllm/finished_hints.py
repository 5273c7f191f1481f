"""Passes on what is known of a session when a request has ended and its pages are stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.request_hints import CALLS_TOOL, CUT_OFF, HintReader, RequestHints
from pagetier.client.engines.vllm.counters import ConnectorCounters
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.hints import Hint

log = logging.getLogger("vllm.pagetier")

_LENGTH: Final = "FINISHED_LENGTH_CAPPED"
_STOPPED: Final = "FINISHED_STOPPED"
_WAITING: Final = 1024  # requests that have ended and whose last pages are being stored


class FinishedHints:
    """Passes on the hints of requests that have ended, once their last pages are stored. No method blocks."""

    def __init__(self, thread: PrefetchThread, counters: ConnectorCounters) -> None:
        self._thread = thread
        self._reader = HintReader(log, partial(counters.add, "wrong_hints", 1))
        self._waiting: dict[str, tuple[RequestState, tuple[Hint, ...]]] = {}

    def read(self, request: Any) -> RequestHints:
        """Returns what a request says itself; see HintReader.read()."""
        return self._reader.read(request, request.request_id)

    def finished(self, tracked: RequestState, *, stores: bool) -> None:
        """Passes on the hints of a request that has ended; those of one that still `stores` wait for stored()."""
        hints = (*tracked.said.hints(),) or finish_hints(tracked.request)
        if not hints:
            return
        if not stores:
            self._send(tracked, hints)
            return
        self._waiting[tracked.request.request_id] = tracked, hints
        if len(self._waiting) > _WAITING:
            self._send(*self._waiting.pop(next(iter(self._waiting))))

    def stored(self, requests: Iterable[str]) -> None:
        """Passes on the hints of requests whose last pages are stored."""
        for request in requests:
            if (waiting := self._waiting.pop(request, None)) is not None:
                self._send(*waiting)

    def _send(self, tracked: RequestState, hints: Iterable[Hint]) -> None:
        for hint in hints:
            for keys in tracked.keys:
                if len(keys):
                    self._thread.hint(keys, hint)


def finish_hints(request: Any) -> tuple[Hint, ...]:
    """Returns what the reason says for which a request has ended; nothing for most."""
    status = getattr(getattr(request, "status", None), "name", "")
    if status == _LENGTH:
        return CUT_OFF
    if status == _STOPPED and getattr(request, "stop_reason", None) is not None:
        return CALLS_TOOL
    return ()
