"""Requests whose response the daemon still owes: reservations, prefetches and flushes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import Attachment
from pagetier.client.hints import NO_HINT, Hint, require_hint
from pagetier.client.keys import Keys, Namespace
from pagetier.client.paged_blocks import Part
from pagetier.client.pending_request import PendingRequest
from pagetier.client.reservation import Reservation
from pagetier.shm import clock
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Answer, Fetch, Fetched, FetchOutcome, Flush, Flushed, Reserve, Reserved, Space

RESPONSE_S: Final = 0.1
"""Seconds within which a healthy daemon answers, beyond the time that the disk was given."""

_SIZE_BYTES: Final = 8
_IN_MEMORY: Final = bytes([FetchOutcome.IN_MEMORY])


class PendingReservation:
    """A reservation that was requested and not collected yet. Made by Client.reserve_async(). Thread-safe.

    It is collected with wait() or cancelled with cancel(); dropping it cancels it. In a forked child every page is
    rejected.

    Attributes:
        pages: The number of pages.
        part: The part of each page that the caller writes.
    """

    def __init__(self, pending: PendingRequest[Reservation], pages: int, part: Part) -> None:
        self.pages = pages
        self.part = part
        self._pending = pending

    @property
    def unsent(self) -> bool:
        """Whether the request could not be sent over this connection: the daemon never receives it."""
        return self._pending.unsent

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once."""
        return self._pending.ready

    def call_when_ready(self, call: Callable[[], object]) -> None:
        """Calls `call` when the reservation is ready, in any thread, or at once; never after it was collected.

        Args:
            call: Never waits or raises an exception. It may be called twice.
        """
        self._pending.call = call
        if self._pending.done:
            call()

    def wait(self, timeout: float) -> Reservation:
        """Returns the reservation, waiting at most `timeout` seconds for the response.

        Only the first call gets it. Without a response in time, and in every further call, all pages are rejected;
        pages that the daemon grants later are abandoned automatically.
        """
        return self._pending.collect(timeout)

    def cancel(self) -> None:
        """Gives up all pages that were or will be granted, without waiting. Has no effect after wait()."""
        self._pending.take(0.0).abandon()

    def give_up(self, waited: float) -> None:
        """Cancels; if there is no response yet, the client sends the daemon no further requests until one comes.

        Args:
            waited: The seconds that the daemon had for its response, more than 0.
        """
        self._pending.take(waited).abandon()
        self._pending.log_silence()

    def __repr__(self) -> str:
        state = "collected" if self._pending.collected else "ready" if self.ready else "requested"
        return f"<PendingReservation of {self.pages} pages, {state}>"


def reservation_request(
    attachment: Attachment,
    keys: Keys,
    sizes: int | Sequence[int] | npt.NDArray[np.uint64],
    part: Part,
    hint: Hint = NO_HINT,
) -> PendingRequest[Reservation]:
    """Returns a request for memory for pages, which is not sent yet.

    The result is a reservation; if it is not collected, it is dropped, which abandons its pages.

    Raises ValueError if the number of sizes differs from the number of keys, or a size is not in 0 .. 2**64-1.

    Args:
        attachment: The attachment of this process.
        keys: The pages, head first.
        sizes: Bytes of each page, or of every page.
        part: The part of each page that the caller writes.
        hint: What is known of the session. A daemon that does not understand hints ignores it.
    """
    if hint is not NO_HINT:
        require_hint(hint)
    packed = packed_sizes(sizes, len(keys))
    space = Space(keys.namespace.digest, keys.namespace.name, keys.namespace.page_tokens)
    linked, reservation = attachment.linked, Reservation(part)

    def request(number: int) -> Reserve:
        return Reserve(
            number, space, part.index, part.count, keys.data, packed, part.division, keys.prompts, hint.kind, hint.ttl
        )

    def accept(answer: Answer) -> Reservation | None:
        return reservation.grant(linked, answer) if linked and isinstance(answer, Reserved) else None

    def fail(reason: str) -> Reservation:
        return Reservation.rejected(len(keys), reason, part)

    return PendingRequest(attachment.requests, linked.link if linked else None, request, accept, fail)


def packed_sizes(sizes: int | Sequence[int] | npt.NDArray[np.uint64], count: int) -> bytes:
    """Returns the size of each page as little-endian u64.

    Raises:
        ValueError: The number of sizes is not `count`, or a size is not in 0 .. 2**64-1.
    """
    try:
        if isinstance(sizes, int):
            return sizes.to_bytes(_SIZE_BYTES, "little") * count
        given = np.asarray(sizes, dtype="<u8")
    except OverflowError as error:
        raise ValueError("the size of a page is a number of bytes from 0 to 2**64-1") from error
    if given.ndim and given.shape != (count,):
        raise ValueError(f"{len(given)} sizes for {count} pages")
    return np.broadcast_to(given, count).tobytes()


class Prefetch:
    """A request to read pages of a chain from disk into memory. Made by Client.prefetch(). Thread-safe.

    It pins nothing, and dropping it does not cancel the prefetch. The daemon may evict the pages again at any time:
    they can be used once a match has pinned them. In a forked child it is ready, with no pages in memory.

    Attributes:
        pages: The number of pages that were requested.
    """

    def __init__(self, pending: PendingRequest[int], pages: int) -> None:
        self.pages = pages
        self._pending = pending

    @property
    def ready(self) -> bool:
        """Whether wait() returns at once: the daemon has answered, or no response will come. Cheap to poll."""
        return self._pending.ready

    def wait(self, timeout: float) -> int:
        """Returns how many pages, from the first on, were in memory when the daemon answered. May be called again.

        Waits at most `timeout` seconds; 0 without a response by then.
        """
        return self._pending.wait(timeout)

    def __repr__(self) -> str:
        state = f"{self.wait(0.0)} in memory" if self.ready else "requested"
        return f"<Prefetch of {self.pages} pages, {state}>"


class FleetPages(msgspec.Struct, frozen=True):
    """Which of some pages the fleet has.

    Attributes:
        sizes: The size of each page (u64), 0 if the fleet does not have it.
        spaces: The namespace of each page, u32 indices into `table`.
        table: The namespaces.
    """

    sizes: bytes
    spaces: bytes
    table: tuple[Space, ...]


def prefetch_request(
    attachment: Attachment, keys: bytes, disk_timeout: float, fleet: FleetPages | None = None
) -> PendingRequest[int]:
    """Returns a request to read pages from disk and from the fleet, which is not sent yet.

    Its result is the number of pages, from the first on, that were in memory when the daemon answered.

    Args:
        attachment: The attachment of this process.
        keys: The keys, 32 bytes each. Without keys no request is sent.
        disk_timeout: Seconds that the disk and the fleet may take.
        fleet: The pages that were located in the fleet.
    """
    linked = attachment.linked if keys else None
    pages, due = len(keys) // KEY_BYTES, clock.now() + disk_timeout + RESPONSE_S

    def request(number: int) -> Fetch:
        if fleet is None:
            return Fetch(number, keys, disk_timeout)
        return Fetch(number, keys, disk_timeout, fleet.sizes, fleet.spaces, fleet.table)

    def accept(answer: Answer) -> int | None:
        return _in_memory(answer.outcomes[:pages]) if isinstance(answer, Fetched) else None

    return PendingRequest(attachment.requests, linked.link if linked else None, request, accept, lambda _: 0, due)


def _in_memory(outcomes: bytes) -> int:
    return len(outcomes) - len(outcomes.lstrip(_IN_MEMORY))


def flush_request(attachment: Attachment, namespace: Namespace) -> PendingRequest[Flushed | None]:
    """Returns a request to drop a namespace's pages, which is not sent yet.

    Its result is the response, or None. The daemon waits for the disk before it answers, which may take seconds: a
    missing response does not count as a late daemon.
    """
    linked, digest = attachment.linked, namespace.digest.hex()

    def accept(answer: Answer) -> Flushed | None:
        return answer if isinstance(answer, Flushed) else None

    link = linked.link if linked else None
    return PendingRequest(attachment.requests, link, lambda number: Flush(number, digest), accept, lambda _: None)
