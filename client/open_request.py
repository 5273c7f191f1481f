"""One request to the daemon, from before it is sent until its result is known and collected."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Generic, TypeVar

from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer, Request
from pagetier.shm.request_sender import Sending

_T = TypeVar("_T")


class OpenRequest(Generic[_T]):
    """A request and its result. Requests changes it, under its lock.

    The result is known when the daemon has answered, or when it is certain that no response will come. The caller and
    the response may come in any order, so `done` and `collected` are independent: the result of a request that was
    collected before is dropped, which releases what it refers to, such as granted pages.

    Attributes:
        link: The connection over which the request is sent; None if there is none.
        request: Makes the request from its number.
        accept: Returns the result for a response, or None for a response of another type. Called under the lock of
            Requests, by any thread. An exception of a signal handler may end it; then it is called again.
        fail: Returns the result for the reason why there is no response.
        due: The clock's time by which a healthy daemon has answered, if the request waits for the disk.
        number: The number of the request, once it is being sent.
        sending: The bytes of the request; None before it is sent.
        unsent: Whether the request could not be sent over this connection: the daemon never receives it.
        done: Whether the result is known.
        collected: Whether the caller has taken the result, or no longer waits for it.
        result: The result, until it is collected.
        call: Called, in any thread, once the result is known and until it is collected. Never waits or raises.
    """

    def __init__(
        self,
        link: Link | None,
        request: Callable[[int], Request],
        accept: Callable[[Answer], _T | None],
        fail: Callable[[str], _T],
        due: float = math.inf,
    ) -> None:
        self.link, self.due = link, due
        self.number = 0
        self.sending: Sending | None = None
        self.unsent = self.done = self.collected = False
        self.result: _T | None = None
        self.call: Callable[[], object] | None = None
        self.request, self.accept, self.fail = request, accept, fail

    @property
    def sent(self) -> bool:
        """Whether the whole request was sent."""
        return self.sending is not None and self.sending.is_whole

    def receive(self, answer: Answer) -> bool:
        """Takes a response. Returns False if it is of another type. May be called again."""
        if not self.done:
            result = self.accept(answer)
            if result is None:
                return False
            self._set(result)
        self._report()
        return True

    def finish(self, result: _T) -> None:
        """Sets the result, or drops it if the request was collected before."""
        self._set(result)
        self._report()

    def _set(self, result: _T) -> None:
        self.result = None if self.collected else result
        self.done = True
        self.accept = _nothing  # it refers to the result, which its owner may drop before this request

    def _report(self) -> None:
        if (call := self.call) is not None:
            call()


def _nothing(_answer: Answer) -> None:
    """Accepts no response."""
