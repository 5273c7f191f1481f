"""Room that was asked for, and is on its way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.client.keys import Namespace
from pagetier.client.paged_blocks import Part
from pagetier.client.reservation import Answered, Reservation
from pagetier.client.rpc import LinkedSession, PendingRequest, Requests
from pagetier.shm.protocol import Answer, Fetched, Reserved, Space


class PendingReservation(PendingRequest[Answered]):
    """Room that was asked for. Collect it with wait(), or cancel(); who drops it cancels.

    Made by Client.reserve_async. From any thread; in a forked child it is refused.
    """

    def __init__(self, requests: Requests, attachment: LinkedSession | None, part: Part, pages: int) -> None:
        super().__init__(requests, attachment, pages)
        self.part = part
        self._session = attachment.session if attachment else None
        self._held = attachment.held if attachment else set()

    def wait(self, timeout: float) -> Reservation:
        """The reservation, once; after `timeout` seconds without an answer every page of it is refused."""
        if self._requests.foreign:
            return self._collect(0.0)
        self._requests.wait(self, timeout)
        reservation = self._collect(timeout)
        self._requests.tell()
        return reservation

    def cancel(self) -> None:
        """Gives up what was or will be granted. Does nothing after wait()."""
        self._collect(0.0).abandon()

    def give_up(self, waited: float) -> None:
        """cancel(), and where there is no answer the daemon is not asked again until it gives one.

        waited: seconds that it was given to answer, more than 0.
        """
        self._collect(waited).abandon()
        if not self._requests.foreign:
            self._requests.tell()

    def _collect(self, waited: float) -> Reservation:
        return Reservation(self._session, self._held, self._answered(waited), self.part)

    def _answered(self, waited: float) -> Answered:
        if self._requests.foreign:
            return Answered.refused(self.pages, "it was asked for in another process")
        answer = self._requests.collect(self, waited)
        return answer or Answered.refused(self.pages, "the daemon did not answer in time")

    def _hopeless(self) -> bool:
        """A daemon that is slow to read from disk is none that hangs: room is asked for all the same."""
        return self._requests.owes_at_once

    def _take(self, answer: Answer) -> bool:
        if not isinstance(answer, Reserved):
            return False
        self._answer = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        self._held.update(self._answer.granted_serials)
        if self._collected:
            self.cancel()
        return True

    def _fail(self, reason: str) -> None:
        self._answer = Answered.refused(self.pages, reason)

    def __del__(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = "collected" if self._collected else "ready" if self.ready else "asked"
        return f"<PendingReservation of {self.pages} pages, {state}>"


def space_of(namespace: Namespace) -> Space:
    """As the index knows it."""
    return Space(namespace.digest, namespace.name, namespace.page_tokens)


def packed_sizes(sizes: int | Sequence[int] | npt.NDArray[np.uint64], count: int) -> bytes:
    """Raises ValueError where the number of sizes is another than that of the pages, or one is below 0."""
    try:
        given = np.asarray(sizes, dtype="<u8")
    except OverflowError as error:
        raise ValueError("a page's size is a number of bytes below 2**64") from error
    if given.ndim and given.shape != (count,):
        raise ValueError(f"{len(given)} sizes for {count} pages")
    return np.broadcast_to(given, count).tobytes()


ANSWER_S: Final = 0.1
"""What a daemon that is well may take to answer beyond the time that the disk was given."""

_IN_MEMORY: Final = b"\0"


class Prefetch(PendingRequest[int]):
    """Pages of a chain on their way from disk into memory. It holds nothing: who drops it stops nothing.

    Made by Client.prefetch. From any thread; in a forked child it is done, with nothing in memory. What the daemon
    said may be out of date soon: pages are in use only once a match has pinned them.

    pages: how many were asked for.
    """

    def __init__(self, requests: Requests, attachment: LinkedSession | None, pages: int, seconds: float) -> None:
        super().__init__(requests, attachment, pages)
        self._due = time.monotonic() + seconds + ANSWER_S

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once: all is in memory, or can not be had, or not in time. Costs nothing to ask."""
        return self._done or self._requests.foreign

    def wait(self, timeout: float) -> int:
        """Waits at most `timeout` seconds. How many pages from the head on the daemon said are in memory; 0 if none.

        May be called again.
        """
        if self._requests.foreign:
            return 0
        self._requests.wait(self, timeout)
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
