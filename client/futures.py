"""Requests whose response the daemon still owes: reservations, prefetches and flushes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import Attachment
from pagetier.client.keys import Keys, Namespace
from pagetier.client.paged_blocks import Part
from pagetier.client.reservation import Answered, Reservation
from pagetier.client.rpc import LinkedSession, PendingRequest, Requests
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Answer, Fetch, Fetched, FetchOutcome, Flush, Flushed, Reserve, Reserved, Space

RESPONSE_S: Final = 0.1
"""Seconds within which a healthy daemon answers, beyond the time that the disk was given."""

_IN_MEMORY: Final = bytes([FetchOutcome.IN_MEMORY])


class PendingReservation(PendingRequest[Answered]):
    """A reservation that was requested and not collected yet. Made by Client.reserve_async(). Thread-safe.

    It is collected with wait() or cancelled with cancel(); dropping it cancels it. In a forked child every page is
    rejected.

    Attributes:
        pages: The number of pages.
        part: The part of each page that the caller writes.
    """

    def __init__(self, requests: Requests, linked: LinkedSession | None, part: Part, pages: int) -> None:
        super().__init__(requests, linked, pages)
        self.part = part
        self._session = linked.session if linked else None
        self._granted = linked.granted if linked else set()

    def wait(self, timeout: float) -> Reservation:
        """Returns the reservation, waiting at most `timeout` seconds for the response.

        Only the first call gets it. Without a response in time, and in every further call, all pages are rejected;
        pages that the daemon grants later are abandoned automatically.
        """
        if self._requests.foreign:
            return self._collect(0.0)
        self._requests.wait(self, timeout)
        reservation = self._collect(timeout)
        self._requests.log_silence()
        return reservation

    def cancel(self) -> None:
        """Gives up all pages that were or will be granted, without waiting. Has no effect after wait()."""
        self._collect(0.0).abandon()

    def give_up(self, waited: float) -> None:
        """Cancels; if there is no response yet, the client sends the daemon no further requests until one comes.

        Args:
            waited: The seconds that the daemon had for its response, more than 0.
        """
        self._collect(waited).abandon()
        if not self._requests.foreign:
            self._requests.log_silence()

    def _collect(self, waited: float) -> Reservation:
        return Reservation(self._session, self._granted, self._answered(waited), self.part)

    def _answered(self, waited: float) -> Answered:
        if self._requests.foreign:
            return Answered.refused(self.pages, "the reservation was requested in another process")
        answer = self._requests.collect(self, waited)
        return answer or Answered.refused(self.pages, "the daemon did not answer in time")

    def _daemon_is_late(self) -> bool:
        """Implements PendingRequest._daemon_is_late(). A slow disk does not stop reservations."""
        return self._requests.is_late

    def _accept(self, answer: Answer) -> bool:
        if not isinstance(answer, Reserved):
            return False
        self._answer = Answered(answer.outcomes, answer.entries, answer.serials, answer.reason)
        self._granted.update(self._answer.granted_serials)
        if self._collected:
            self.cancel()
        return True

    def _fail(self, reason: str) -> None:
        self._answer = Answered.refused(self.pages, reason)

    def __del__(self) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = "collected" if self._collected else "ready" if self.ready else "requested"
        return f"<PendingReservation of {self.pages} pages, {state}>"


def request_reservation(
    attachment: Attachment,
    keys: Keys,
    sizes: int | Sequence[int] | npt.NDArray[np.uint64],
    part: Part,
    timeout: float,
) -> PendingReservation:
    """Returns a request for memory for pages, sent without waiting for the response.

    Raises ValueError if the number of sizes differs from the number of keys, or a size is not in 0 .. 2**64-1.

    Args:
        attachment: The attachment of this process.
        keys: The pages, head first.
        sizes: Bytes of each page, or of every page.
        part: The part of each page that the caller writes.
        timeout: Seconds for sending.
    """
    packed = packed_sizes(sizes, len(keys))
    space = _space_of(keys.namespace)

    def request(number: int) -> Reserve:
        return Reserve(number, space, part.index, part.count, keys.data, packed, part.division)

    linked = attachment.linked
    pending = PendingReservation(attachment.requests, linked, part, len(keys))
    attachment.requests.ask(linked, request, pending, timeout)
    return pending


def packed_sizes(sizes: int | Sequence[int] | npt.NDArray[np.uint64], count: int) -> bytes:
    """Returns the size of each page as little-endian u64.

    Raises:
        ValueError: The number of sizes is not `count`, or a size is not in 0 .. 2**64-1.
    """
    try:
        given = np.asarray(sizes, dtype="<u8")
    except OverflowError as error:
        raise ValueError("the size of a page is a number of bytes from 0 to 2**64-1") from error
    if given.ndim and given.shape != (count,):
        raise ValueError(f"{len(given)} sizes for {count} pages")
    return np.broadcast_to(given, count).tobytes()


def _space_of(namespace: Namespace) -> Space:
    return Space(namespace.digest, namespace.name, namespace.page_tokens)


class Prefetch(PendingRequest[int]):
    """A request to read pages of a chain from disk into memory. Made by Client.prefetch(). Thread-safe.

    It pins nothing, and dropping it does not cancel the prefetch. The daemon may evict the pages again at any time:
    they can be used once a match has pinned them. In a forked child it is ready, with no pages in memory.

    Attributes:
        pages: The number of pages that were requested.
    """

    def __init__(self, requests: Requests, linked: LinkedSession | None, pages: int, seconds: float) -> None:
        super().__init__(requests, linked, pages)
        self._due = time.monotonic() + seconds + RESPONSE_S

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once: the daemon has answered, or no response will come. Cheap to poll."""
        return self._done or self._requests.foreign

    def wait(self, timeout: float) -> int:
        """Returns how many pages, from the first on, were in memory when the daemon answered. May be called again.

        Waits at most `timeout` seconds; 0 without a response by then.
        """
        if self._requests.foreign:
            return 0
        self._requests.wait(self, timeout)
        return self._answer or 0

    def _daemon_is_late(self) -> bool:
        return self._requests.is_late or self._requests.is_late_with_disk

    def _accept(self, answer: Answer) -> bool:
        if not isinstance(answer, Fetched):
            return False
        outcomes = answer.outcomes[: self.pages]
        self._answer = len(outcomes) - len(outcomes.lstrip(_IN_MEMORY))
        return True

    def _fail(self, reason: str) -> None:
        self._answer = 0

    def __repr__(self) -> str:
        state = f"{self._answer or 0} in memory" if self.ready else "requested"
        return f"<Prefetch of {self.pages} pages, {state}>"


def request_prefetch(attachment: Attachment, keys: bytes, disk_timeout: float, timeout: float) -> Prefetch:
    """Returns a request to read pages from disk, sent without waiting for the response.

    Args:
        attachment: The attachment of this process.
        keys: The keys, 32 bytes each. Without keys no request is sent.
        disk_timeout: Seconds that the disk may take.
        timeout: Seconds for sending.
    """
    linked = attachment.linked if keys else None

    def request(number: int) -> Fetch:
        return Fetch(number, keys, disk_timeout)

    prefetch = Prefetch(attachment.requests, linked, len(keys) // KEY_BYTES, disk_timeout)
    attachment.requests.ask(linked, request, prefetch, timeout)
    return prefetch


class PendingFlush(PendingRequest[Flushed]):
    """A request to drop the pages of a namespace. Thread-safe; in a forked child there is no response.

    The daemon waits for the disk before it answers, which may take seconds: a missing response does not count as a late
    daemon.
    """

    def __init__(self, requests: Requests, linked: LinkedSession | None) -> None:
        super().__init__(requests, linked, 0)

    def wait(self, timeout: float) -> Flushed | None:
        """Returns the response, or None if there is none within `timeout` seconds. A later one is discarded."""
        if self._requests.foreign:
            return None
        self._requests.wait(self, timeout)
        self._requests.leave(self)
        return self._answer

    def _daemon_is_late(self) -> bool:
        return self._requests.is_late

    def _accept(self, answer: Answer) -> bool:
        if not isinstance(answer, Flushed):
            return False
        self._answer = answer
        return True

    def _fail(self, reason: str) -> None:
        self._answer = None

    def __repr__(self) -> str:
        return f"<PendingFlush, {'answered' if self._done else 'requested'}>"


def request_flush(attachment: Attachment, namespace: Namespace, timeout: float) -> PendingFlush:
    """Returns a request to drop a namespace's pages, sent within `timeout` seconds."""
    linked, digest = attachment.linked, namespace.digest.hex()
    pending = PendingFlush(attachment.requests, linked)
    attachment.requests.ask(linked, lambda number: Flush(number, digest), pending, timeout)
    return pending
