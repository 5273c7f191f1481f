"""Requests pages on disk and sends hints on a thread of its own: a daemon that hangs does not block the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from pagetier.client.client import Client
from pagetier.client.daemon_requests import Prefetch
from pagetier.client.group_match import GroupMatch
from pagetier.client.hints import Hint
from pagetier.client.keys import Keys

_MOST_HINTS: Final = 256


class ReadEnd:
    """The end of a read, at which the requests that wait for it are woken. Thread-safe."""

    def __init__(self) -> None:
        self._ended = False
        self._waiting: set[Callable[[], None]] = set()

    def add(self, wake: Callable[[], None]) -> None:
        """Adds a call for the end, which happens in any thread, or now if it has ended. It never waits or raises."""
        self._waiting.add(wake)
        if self._ended:  # after it was added, so that no end is lost
            wake()

    def wake(self) -> None:
        """Does all calls, and those that are added later at once."""
        self._ended = True
        for wake in tuple(self._waiting):
            wake()


class PendingPrefetch:
    """A prefetch that waits to be sent, or was sent.

    Attributes:
        waker: Wakes the requests that wait for it.
    """

    def __init__(self, sent: Future[Prefetch], waker: ReadEnd) -> None:
        self._sent, self.waker = sent, waker

    @property
    def ready(self) -> bool:
        """Whether the prefetch has ended or was cancelled. It is a cheap check."""
        return self._sent.done() and (self._sent.cancelled() or self._sent.result().ready)


def part_of(prefetch: Prefetch) -> float:
    """Returns the part of the pages of a prefetch that has ended which came, from the first on; at most 1."""
    return prefetch.wait(0.0) / prefetch.pages if prefetch.pages else 1.0


class PrefetchThread:
    """One thread that sends all prefetch requests and hints. No method blocks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hints: deque[tuple[Keys, Hint]] = deque()
        self._sends_hints = False  # whether the thread will look at them
        self._thread = ThreadPoolExecutor(1, "pagetier-ask")

    def submit(self, match: GroupMatch, timeout: float, ended: Callable[[float], None]) -> PendingPrefetch:
        """Requests the pages of `match` that are available but not pinned.

        Args:
            match: The match. It may be released before the prefetch ends.
            timeout: Seconds that the disk has.
            ended: Called in any thread when the prefetch has ended, maybe twice, with the part of the pages that came.

        Returns:
            A handle that reports the end of the prefetch.
        """
        waker = ReadEnd()

        def prefetch() -> Prefetch:
            sent = self._client.prefetch(match, timeout)

            def end() -> None:
                ended(part_of(sent))
                waker.wake()

            sent.call_when_ready(end)
            return sent

        future = self._thread.submit(prefetch)
        future.add_done_callback(lambda done: waker.wake() if done.cancelled() or done.exception() else None)
        return PendingPrefetch(future, waker)

    def run(self, call: Callable[[], object]) -> bool:
        """Calls a function on the thread. Returns whether it will be called: it is not after close()."""
        try:
            self._thread.submit(call)
        except RuntimeError:
            return False
        return True

    def hint(self, keys: Keys, hint: Hint) -> None:
        """Sends a hint. It is dropped while many requests wait to be sent: the daemon hangs.

        One wake-up of the thread serves all hints that come before it runs, as those of a step do.
        """
        if len(self._hints) >= _MOST_HINTS:
            return
        self._hints.append((keys, hint))
        if not self._sends_hints:
            self._sends_hints = True
            self._thread.submit(self._send_hints)

    def _send_hints(self) -> None:
        self._sends_hints = False  # first: a hint that is added from now on submits this again
        while self._hints:
            self._client.hint(*self._hints.popleft())

    def close(self) -> None:
        """Cancels requests that were not sent. Does not wait."""
        self._thread.shutdown(wait=False, cancel_futures=True)
