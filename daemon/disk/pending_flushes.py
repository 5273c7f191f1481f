"""What was flushed and has not left the disk: a worker that is away, or dies of it, must not bring it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

LETTING_GO_S: Final = 10.0
_MOST: Final = 4096
_ALL: Final = b""  # among digests, which are longer
_NO_ORDER: Final = 0  # theirs begin at 1
_LATER: Final = "what was flushed leaves the disk when it is back, if this daemon lives until then"
_AWAY: Final = f"the disk tier is not open: {_LATER}"
_HANGS: Final = f"the disk has not answered for {LETTING_GO_S:.0f} s: {_LATER}"


class Flushes:
    """Namespaces by their digests, or all of them, until the disk has dropped them; and who waits for that.

    On the loop's thread only. Each `then` is called once: with "", or with why what was flushed may be on disk still.
    More namespaces than are worth remembering count as all.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._orders: dict[bytes, int] = {}
        self._waiting: dict[int, list[Callable[[str], None]]] = {}

    def keep(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Of these namespaces, None for all: there is no worker that could drop them."""
        self._note(digests, _NO_ORDER)
        then(_AWAY)

    def wait(self, digests: Collection[bytes] | None, order: int, then: Callable[[str], None]) -> None:
        """The worker has been told to drop them, by this order or those before it."""
        self._note(digests, order)
        self._waiting.setdefault(order, []).append(then)
        self._loop.call_later(LETTING_GO_S, self._answer, order, _HANGS)

    def done(self, order: int, reason: str) -> None:
        """The worker has carried out an order; reason: why not all of it, or "": what is left the next one drops."""
        left = {digest: _NO_ORDER for digest, its in self._orders.items() if its == order} if reason else {}
        self._orders = {digest: its for digest, its in self._orders.items() if its != order} | left
        self._answer(order, f"not all could be dropped from disk: {reason}" if reason else "")

    def lost(self) -> None:
        """The worker is gone, and its orders with it."""
        for order in list(self._waiting):
            self._answer(order, _AWAY)

    def again(self, order: int) -> None:
        """The next worker drops all that is left, by this order; 0: it has nothing of it."""
        self._orders = dict.fromkeys(self._orders, order) if order else {}

    def among(self, digest: bytes) -> bool:
        """Whether what a worker finds of this namespace was flushed."""
        return digest in self._orders or _ALL in self._orders

    def _note(self, digests: Collection[bytes] | None, order: int) -> None:
        self._orders |= dict.fromkeys((_ALL,) if digests is None else digests, order)
        if len(self._orders) > _MOST:
            self._orders = {_ALL: order}

    def _answer(self, order: int, why: str) -> None:
        for then in self._waiting.pop(order, ()):
            then(why)
