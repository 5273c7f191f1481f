"""Requests that walk the whole index: who wants the same meanwhile is answered by one walk, and it has to wait."""

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


class Walks:
    """Behind a long one the loop is everybody else's for ten times as long. On the loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[Hashable, _Walk] = {}
        self._free_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, what: Hashable, walk: Callable[[], T], reply: Callable[[T], None]) -> None:
        """Calls reply once with what walk says, at once or a little later; all that begins after it was asked for.

        Of those who ask for the same `what` while it waits, the first one's walk is done for all.
        """
        self._waiting.setdefault(what, _Walk(walk)).replies.append(reply)
        if self._timer is None:
            self._go_on()

    def waits(self, what: Hashable) -> bool:
        """Whether somebody waits for it."""
        return what in self._waiting

    def close(self) -> None:
        """Nobody who waits is answered."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        self._timer = None
        try:
            if self._waiting and self._loop.time() >= self._free_at:
                self._do(self._waiting.pop(next(iter(self._waiting))))
        finally:
            if self._waiting and self._timer is None:  # one a turn of the loop, however many wait
                self._timer = self._loop.call_at(max(self._free_at, self._loop.time()), self._go_on)

    def _do(self, asked: _Walk) -> None:
        began = self._loop.time()
        answer = asked.walk()
        ended = self._loop.time()
        if ended - began > _LONG_S:
            self._free_at = ended + _PAUSES * (ended - began)
        for reply in asked.replies:
            reply(answer)
