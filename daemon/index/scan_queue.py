"""Queues requests that walk the whole index: equal requests share one walk, and walks leave time for other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_LONG_S: Final = 0.02
_PAUSES: Final = 10.0


class _Walk(msgspec.Struct):
    walk: Callable[[], Any]
    replies: list[Callable[[Any], None]] = []


class ScanQueue:
    """The queue of walks. After a long walk, the next one waits ten times as long as it took.

    On the loop's thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Hashable, _Walk] = {}
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, what: Hashable, walk: Callable[[], T], reply: Callable[[T], None]) -> None:
        """Calls `reply` once with the result of a walk that begins after this call, at once or later.

        Of the requests for the same `what` that wait at the same time, only the first one's walk is done.
        """
        self._waiting.setdefault(what, _Walk(walk)).replies.append(reply)
        if self._timer is None:
            self._go_on()

    def waits(self, what: Hashable) -> bool:
        """Returns whether a request for `what` is in the queue."""
        return what in self._waiting

    def close(self) -> None:
        """Stops the queue. The requests in it get no reply."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._timer = None
        try:
            if self._waiting and self._loop.time() >= self._free_at:
                self._do(self._waiting.pop(next(iter(self._waiting))))
        finally:
            if self._waiting and self._timer is None:  # one walk in each iteration of the loop
                self._timer = self._loop.call_at(max(self._free_at, self._loop.time()), self._go_on)

    def _do(self, asked: _Walk) -> None:
        began = self._loop.time()
        answer = asked.walk()
        ended = self._loop.time()
        if ended - began > _LONG_S:
            self._free_at = ended + _PAUSES * (ended - began)
        for reply in asked.replies:
            reply(answer)
