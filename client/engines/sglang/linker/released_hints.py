"""Passes on what is known of a session when SGLang releases a request and its pages are stored."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.request_hints import CALLS_TOOL, CUT_OFF, HintReader
from pagetier.client.hints import Hint
from pagetier.client.keys import Keys

log = logging.getLogger("pagetier.sglang")

_MOST: Final = 1024  # sessions, and requests whose last pages are being stored


class _Waiting(msgspec.Struct, frozen=True, eq=False):
    """Hints of pages that are being stored.

    Attributes:
        offload: The number of offloads that end before the pages can be found.
        keys: The pages of each group.
        hints: The hints.
    """

    offload: int
    keys: tuple[Keys, ...]
    hints: tuple[Hint, ...]


class ReleasedHints:
    """Passes on the hints of requests that SGLang has released. No method blocks. Called by SGLang's scheduler only.

    Args:
        thread: Sends the hints.
        by_priority: Whether SGLang evicts by priority (`--radix-eviction-policy priority`): then requests with a
            priority above 0 are kept.
    """

    def __init__(self, thread: PrefetchThread, *, by_priority: bool) -> None:
        self._thread, self._by_priority = thread, by_priority
        self._reader = HintReader(log, lambda: None)
        self._waiting: deque[_Waiting] = deque()
        self._sessions: dict[str, tuple[Keys, ...]] = {}

    def hints_of(self, request: Any) -> tuple[Hint, ...]:
        """Returns what a request says itself, or else what its end and its priority say. Nothing for most."""
        if request.finished_reason is None:
            return ()  # it is continued
        said = (*self._reader.read(request, request.rid).hints(),)
        if not said and self._by_priority and (request.priority or 0) > 0:
            said = (Hint.keep(),)
        return said or _of_reason(request)

    def released(self, keys: tuple[Keys, ...], hints: tuple[Hint, ...], session: str | None, offload: int) -> None:
        """Passes on the hints of a request once `offload` offloads have ended.

        Args:
            keys: The pages of the request in each group.
            hints: See hints_of().
            session: The ID of the request's session, see closed(); None for none.
            offload: The number of offloads that SGLang has begun.
        """
        if session is not None:
            self._sessions[session] = keys
            if len(self._sessions) > _MOST:
                del self._sessions[next(iter(self._sessions))]
        if hints:
            self._waiting.append(_Waiting(offload, keys, hints))
            if len(self._waiting) > _MOST:
                self.stored(self._waiting[0].offload)

    def stored(self, offload: int) -> None:
        """Passes on hints whose pages are stored: so many offloads have ended."""
        while self._waiting and self._waiting[0].offload <= offload:
            waiting = self._waiting.popleft()
            self._send(waiting.keys, waiting.hints)

    def closed(self, session: str) -> None:
        """Says that a session is over."""
        self._send(self._sessions.pop(session, ()), CUT_OFF)

    def _send(self, groups: Iterable[Keys], hints: Iterable[Hint]) -> None:
        for hint in hints:
            for keys in groups:
                self._thread.hint(keys, hint)


def _of_reason(request: Any) -> tuple[Hint, ...]:
    """Returns what the reason says for which a request has ended: an end-of-sequence token says nothing."""
    reason = request.finished_reason
    match type(reason).__name__:
        case "FINISH_LENGTH":
            return CUT_OFF
        case "FINISH_MATCHED_STR" | "FINISHED_MATCHED_REGEX":
            return CALLS_TOOL
        case "FINISH_MATCHED_TOKEN":
            return CALLS_TOOL if reason.matched in (request.sampling_params.stop_token_ids or ()) else ()
        case _:
            return ()
