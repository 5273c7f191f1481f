"""A request to the daemon whose response has not come yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer, Request
from pagetier.shm.request_sender import Sending

if TYPE_CHECKING:
    from pagetier.client.rpc import Requests

_NO_RESPONSE: Final = "the daemon did not answer in time"
_FOREIGN: Final = "the request was sent by another process"
_T = TypeVar("_T")


class PendingRequest(Generic[_T]):
    """A request to the daemon, and its result once it is known. Thread-safe.

    The result is known when the daemon has answered, or when it is certain that no response will come. In a forked
    child the request counts as failed.

    Attributes:
        link: The connection over which the request is sent; None if there is none.
        request: Makes the request from its number.
        accept: Returns the result for a response, or None for a response of another type. Called under the lock of
            `requests`, by any thread. An exception of a signal handler may end it; then it is called again.
        fail: Returns the result for the reason why there is no response.
        due: The clock's time by which a healthy daemon has answered, if the request waits for the disk.
        number: The number of the request, once it is being sent.
        sending: The bytes of the request; None before it is sent.
        unsent: Whether the request could not be sent over this connection: the daemon never receives it.
        done: Whether the result is known. Requests changes it under its lock, as the next two.
        collected: Whether the caller has taken the result, or no longer waits for it. A result that comes later is
            dropped, which releases what it refers to.
        result: The result, until it is collected.
        call: Called, in any thread, once the result is known and until it is collected. Never waits or raises.
    """

    def __init__(
        self,
        requests: Requests,
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
        self._requests = requests

    @property
    def sent(self) -> bool:
        """Whether the whole request was sent."""
        return self.sending is not None and self.sending.is_whole

    @property
    def ready(self) -> bool:
        """Whether wait() and collect() return at once. Cheap to poll."""
        return self.done or self._requests.foreign

    def send(self, timeout: float) -> None:
        """Sends the request within `timeout` seconds and returns without waiting for the response.

        An exception of a signal handler may end it after the request was sent: the caller then calls leave() or take().
        """
        self._requests.ask(self, timeout)

    def send_and_leave(self, timeout: float) -> None:
        """Sends the request within `timeout` seconds and leaves the response to the background thread."""
        try:
            self.send(timeout)
            self.leave()
        except BaseException:  # an exception of a signal handler
            self.leave()
            raise

    def send_and_collect(self, deadline: Deadline) -> _T:
        """Returns the result, waiting for it until the deadline; see collect()."""
        try:
            self.send(deadline.left)
            return self.collect(deadline.left)
        except BaseException:  # an exception of a signal handler
            self.take(0.0)
            raise

    def wait(self, timeout: float) -> _T:
        """Returns the result, waiting at most `timeout` seconds for it. May be called again."""
        if self._requests.foreign:
            return self.fail(_FOREIGN)
        self._requests.wait(self, timeout)
        return self.fail(_NO_RESPONSE) if self.result is None else self.result

    def collect(self, timeout: float) -> _T:
        """Returns the result, waiting at most `timeout` seconds for it. Only the first call gets it.

        If a positive timeout was not enough, further requests fail at once until the daemon answers: one caller waits
        for a hanging daemon, not every caller. For requests that need no disk.
        """
        if self._requests.foreign:
            return self.fail(_FOREIGN)
        result = self._requests.collect(self, timeout)
        return self.fail(_NO_RESPONSE) if result is None else result

    def take(self, waited: float) -> _T:
        """Does what collect() does if the daemon already had `waited` seconds for its response. Never waits or logs."""
        result = None if self._requests.foreign else self._requests.take(self, waited)
        return self.fail(_NO_RESPONSE) if result is None else result

    def log_silence(self) -> None:
        """Logs a daemon that is silent, after take(): see Requests.log_silence()."""
        if not self._requests.foreign:
            self._requests.log_silence()

    def leave(self) -> None:
        """Leaves the response to the background thread, because no thread waits for it now."""
        self._requests.leave(self)

    def receive(self, answer: Answer) -> bool:
        """Takes a response. Returns False if it is of another type. For Requests; may be called again."""
        if not self.done:
            result = self.accept(answer)
            if result is None:
                return False
            self._set(result)
        self._report()
        return True

    def finish(self, result: _T) -> None:
        """Sets the result, or drops it if the request was collected before. For Requests."""
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
