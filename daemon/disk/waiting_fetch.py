"""A request of an engine that waits for pages which are being read."""

from __future__ import annotations

import asyncio
from array import array
from collections import defaultdict
from collections.abc import Callable

from pagetier.shm.protocol import Fetch, Fetched, FetchOutcome


class WaitingFetch:
    """One request that waits for pages.

    Attributes:
        outcomes: The answer so far, one byte for each page of the request.
        open: The positions in the answer of each page that is being read, by the page's serial.
    """

    def __init__(self, request: Fetch, outcomes: bytes, reply: Callable[[Fetched], None]) -> None:
        self.number = request.number
        self.outcomes = bytearray(outcomes)
        self.open: defaultdict[int, array[int]] = defaultdict(lambda: array("I"))
        self.reply: Callable[[Fetched], None] | None = reply
        self.reason = ""
        self.sizes = request.sizes
        self.timer: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Sends the response with the current outcomes, once."""
        if self.timer is not None:
            self.timer.cancel()
        reply, self.reply = self.reply, None
        if reply is not None:
            reply(Fetched(self.number, bytes(self.outcomes), self.reason))

    def missed_on_disk(self) -> int:
        """Returns how many pages are not in memory and were not located in the fleet."""
        located = array("Q", self.sizes) if len(self.sizes) == 8 * len(self.outcomes) else ()
        absent = (page for page, outcome in enumerate(self.outcomes) if outcome != FetchOutcome.IN_MEMORY)
        return sum(1 for page in absent if not (located and located[page]))
