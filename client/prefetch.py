"""Pages that were asked for from disk, and are on their way into memory."""

from __future__ import annotations

import time
from typing import Final

from pagetier.client.rpc import Attachment, Owed, Requests
from pagetier.shm.protocol import Answer, Fetched

ANSWER_S: Final = 0.1
"""What a daemon that is well may take to answer beyond the time that the disk was given."""

_IN_MEMORY: Final = b"\0"


class Prefetch(Owed[int]):
    """Pages of a chain on their way from disk into memory. It holds nothing: who drops it stops nothing.

    Made by Client.prefetch. From any thread; in a forked child it is done, with nothing in memory. What the daemon
    said may be out of date soon: pages are in use only once a match has pinned them.

    pages: how many were asked for.
    """

    def __init__(self, requests: Requests, attachment: Attachment | None, pages: int, seconds: float) -> None:
        super().__init__(requests, attachment, pages)
        self._due = time.monotonic() + seconds + ANSWER_S

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once: all is in memory, or can not be had, or not in time. Costs nothing to ask."""
        return self._done or self._requests.foreign

    def wait(self, deadline: float) -> int:
        """Waits at most `deadline` seconds. How many pages from the head on the daemon said are in memory; 0 if none.

        May be called again.
        """
        if self._requests.foreign:
            return 0
        self._requests.wait(self, deadline)
        return self._answer or 0

    def _hopeless(self) -> bool:
        return self._requests.owes_at_once or self._requests.overstays

    def _take(self, answer: Answer) -> bool:
        if not isinstance(answer, Fetched):
            return False
        outcomes = answer.outcomes[: self.pages]
        self._answer = len(outcomes) - len(outcomes.lstrip(_IN_MEMORY))
        return True

    def _fail(self, reason: str) -> None:
        self._answer = 0

    def __repr__(self) -> str:
        state = f"{self._answer or 0} in memory" if self.ready else "asked"
        return f"<Prefetch of {self.pages} pages, {state}>"
