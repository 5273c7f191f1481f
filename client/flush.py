"""Pages that the daemon was asked to drop."""

from __future__ import annotations

from pagetier.client.rpc import LinkedSession, PendingRequest, Requests
from pagetier.shm.protocol import Answer, Flushed


class PendingFlush(PendingRequest[Flushed]):
    """A flush whose answer the daemon owes. From any thread; in a forked child it has none.

    The daemon may take seconds to answer, as it waits for the disk: to wait in vain says nothing about the daemon.
    """

    def __init__(self, requests: Requests, attachment: LinkedSession | None) -> None:
        super().__init__(requests, attachment, 0)

    def wait(self, timeout: float) -> Flushed | None:
        """Returns the answer, None if there is none within `timeout` seconds. The keeper reads a later one."""
        if self._requests.foreign:
            return None
        self._requests.wait(self, timeout)
        self._requests.leave(self)
        return self._answer

    def _hopeless(self) -> bool:
        return self._requests.owes_at_once

    def _take(self, answer: Answer) -> bool:
        if not isinstance(answer, Flushed):
            return False
        self._answer = answer
        return True

    def _fail(self, reason: str) -> None:
        self._answer = None

    def __repr__(self) -> str:
        return f"<PendingFlush, {'answered' if self._done else 'asked'}>"
