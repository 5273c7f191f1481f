"""Remembers flushed namespaces until their pages have left the disk, so that no later worker brings them back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

LETTING_GO_S: Final = 10.0
_MOST: Final = 4096
_ALL: Final = b""  # stands for all namespaces; digests are longer
_NO_ORDER: Final = 0  # orders are numbered from 1
_LATER: Final = "flushed pages leave the disk when it is back, if this daemon still runs then"
_AWAY: Final = f"the disk tier is not open: {_LATER}"
_HANGS: Final = f"the disk has not answered for {LETTING_GO_S:.0f} s: {_LATER}"


class PendingFlushes:
    """Flushed namespaces whose pages the disk has not dropped yet, and the requests that wait for that.

    Namespaces are known by their digests. Above 4,096 of them, all namespaces count as flushed. Each `then` is called
    once:
    with "", or with the reason why flushed pages may still be on disk. On the loop's thread only.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._orders: dict[bytes, int] = {}
        self._waiting: dict[int, list[Callable[[str], None]]] = {}

    def keep(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Remembers a flush that no worker can carry out now. `digests` is None for all namespaces."""
        self._note(digests, _NO_ORDER)
        then(_AWAY)

    def wait(self, digests: Collection[bytes] | None, order: int, then: Callable[[str], None]) -> None:
        """Remembers a flush that the worker carries out by `order` or an earlier order.

        `digests` is None for all namespaces.
        """
        self._note(digests, order)
        self._waiting.setdefault(order, []).append(then)
        self._loop.call_later(LETTING_GO_S, self._answer, order, _HANGS)

    def done(self, order: int, reason: str) -> None:
        """Handles a completed order.

        Args:
            order: The number of the order.
            reason: Why pages of it are still on disk, or "". The next worker drops these.
        """
        left = {digest: _NO_ORDER for digest, number in self._orders.items() if number == order} if reason else {}
        self._orders = {digest: number for digest, number in self._orders.items() if number != order} | left
        self._answer(order, f"some flushed pages are still on disk: {reason}" if reason else "")

    def lost(self) -> None:
        """Answers all waiting requests: the worker is gone, and its orders with it."""
        for order in list(self._waiting):
            self._answer(order, _AWAY)

    def again(self, order: int) -> None:
        """Assigns all remaining flushes to `order` of the new worker; 0 if its disk has none of their pages."""
        self._orders = dict.fromkeys(self._orders, order) if order else {}

    def among(self, digest: bytes) -> bool:
        """Returns whether the pages of the namespace with this digest are flushed."""
        return digest in self._orders or _ALL in self._orders

    def _note(self, digests: Collection[bytes] | None, order: int) -> None:
        self._orders |= dict.fromkeys((_ALL,) if digests is None else digests, order)
        if len(self._orders) > _MOST:
            self._orders = {_ALL: order}

    def _answer(self, order: int, why: str) -> None:
        for then in self._waiting.pop(order, ()):
            then(why)
