"""The handle of a request to the daemon: sending it, and waiting for its response."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from pagetier.client.rpc import OpenRequest, Requests
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import Answer, Request

_NO_RESPONSE: Final = "the daemon did not answer in time"
_FOREIGN: Final = "the request was sent by another process"
_T = TypeVar("_T")


class PendingRequest(OpenRequest[_T]):
    """A request to the daemon, for the caller that sends it. Thread-safe. In a forked child it counts as failed.

    After send() the caller either waits for the response itself, with wait() or collect(), or leaves it to the
    background thread with leave(). An exception of a signal handler may come between these steps, so the methods that
    do several of them leave or take the response then too: a response without a reader would stop the others.
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
        super().__init__(link, request, accept, fail, due)
        self._requests = requests

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
        self._requests.wait(self, timeout)
        result = self._requests.take(self, timeout)
        self._requests.log_silence()
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


class PendingResult(Generic[_T]):
    """The result of a request for the caller of the client, who may be called when it is ready. Thread-safe."""

    def __init__(self, pending: PendingRequest[_T]) -> None:
        self._pending = pending

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once: the daemon has answered, or no response will come. Cheap to poll."""
        return self._pending.ready

    def call_when_ready(self, call: Callable[[], object]) -> None:
        """Calls `call` when the result is ready, in any thread, or at once; not after the caller has collected it.

        Args:
            call: Never waits or raises an exception. It may be called twice.
        """
        self._pending.call = call
        if self._pending.ready:
            call()
