"""A request to the daemon whose response has not come yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer

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
        accept: Returns the result for a response, or None for a response of another type. Called under the lock of
            `requests`, by any thread.
        fail: Returns the result for the reason why there is no response.
        due: The time.monotonic() by which a healthy daemon has answered, if the request waits for the disk.
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
        accept: Callable[[Answer], _T | None],
        fail: Callable[[str], _T],
        due: float = math.inf,
    ) -> None:
        self.link, self.due = link, due
        self.unsent = self.done = self.collected = False
        self.result: _T | None = None
        self.call: Callable[[], object] | None = None
        self.accept, self.fail = accept, fail
        self._requests = requests

    @property
    def ready(self) -> bool:
        """Whether wait() and collect() return at once. Cheap to poll."""
        return self.done or self._requests.foreign

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

    def finish(self, result: _T) -> None:
        """Sets the result, or drops it if the request was collected before. For Requests."""
        self.result = None if self.collected else result
        self.done = True
        if (call := self.call) is not None:
            call()
