"""Asking the daemon for memory for pages: the request, and the handle of one whose response has not come yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from pagetier.client.arguments import seconds_to_wait
from pagetier.client.attachment import AttachedClient, Attachment
from pagetier.client.hints import NO_HINT, Hint, require_hint
from pagetier.client.keys import Keys, require_keys, space_of
from pagetier.client.paged_blocks import WHOLE, Part, required_part
from pagetier.client.pending_request import PendingRequest, PendingResult
from pagetier.client.reservation import Reservation
from pagetier.shm._core import page_requests
from pagetier.shm.protocol import Answer, Reserve, Reserved

PageSizes: TypeAlias = "int | Sequence[int] | npt.NDArray[np.uint64]"
"""The size of each page in bytes with all of its parts, or one size for all pages."""

_SIZE_BYTES: Final = 8


class PendingReservation(PendingResult[Reservation]):
    """A reservation that was requested and not collected yet. Made by reserve_async(). Thread-safe.

    It is collected with wait() or cancelled with cancel(); dropping it cancels it. In a forked child every page is
    rejected.

    Attributes:
        pages: The number of pages.
        part: The part of each page that the caller writes.
    """

    def __init__(self, pending: PendingRequest[Reservation], pages: int, part: Part) -> None:
        super().__init__(pending)
        self.pages, self.part = pages, part

    @property
    def unsent(self) -> bool:
        """Whether the request could not be sent over this connection: the daemon never receives it."""
        return self._pending.unsent

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


def reserve_async(
    client: AttachedClient,
    keys: Keys,
    sizes: PageSizes,
    part: Part = WHOLE,
    timeout: float | None = None,
    hint: Hint = NO_HINT,
) -> PendingReservation:
    """Returns a request for memory for pages, sent without waiting for the response: for a forward pass.

    The errors are those of Client.reserve(). A request for thousands of keys may be sent in part, which ends the
    attachment; the client attaches again on its own.

    Args:
        client: The client.
        keys: See Client.reserve().
        sizes: See Client.reserve().
        part: See Client.reserve().
        timeout: Seconds for sending; None for the client's timeout. With 0 the call never waits: if the socket does not
            take the request, the result is `unsent`.
        hint: See Client.reserve().
    """
    require_keys(keys, "reserve_async()")
    pending = reservation_request(client.attachment, keys, sizes, part, hint)
    pending.send_and_leave(seconds_to_wait(client, timeout))
    return PendingReservation(pending, len(keys), part)


def reservation_request(
    attachment: Attachment,
    keys: Keys,
    sizes: PageSizes,
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
    pages = page_requests(keys.data, packed_sizes(sizes, len(keys)))
    space = space_of(keys)
    linked, reservation = attachment.linked, Reservation(required_part(part))

    def request(number: int) -> Reserve:
        return Reserve(number, space, part.index, part.count, pages, part.division, keys.prompts, hint.kind, hint.ttl)

    def accept(answer: Answer) -> Reservation | None:
        if linked is None or not isinstance(answer, Reserved):
            return None
        return reservation.grant(linked.session, linked.granted, answer)

    def fail(reason: str) -> Reservation:
        return Reservation.rejected(len(keys), reason, part)

    return PendingRequest(attachment.requests, linked.link if linked else None, request, accept, fail)


def packed_sizes(sizes: PageSizes, count: int) -> bytes:
    """Returns the size of each page as little-endian u64.

    Raises:
        TypeError: The size is a text.
        ValueError: The number of sizes is not `count`, or a size is not in 0 .. 2**64-1.
    """
    try:
        if isinstance(sizes, int):
            return sizes.to_bytes(_SIZE_BYTES, "little") * count
        if isinstance(sizes, str):
            raise TypeError("the size of a page must be an integer, not str")
        given = np.asarray(sizes, dtype="<u8")
    except OverflowError as error:
        raise ValueError("the size of a page is a number of bytes from 0 to 2**64-1") from error
    if not given.ndim:
        return given.tobytes() * count
    if given.shape != (count,):
        raise ValueError(f"{len(given)} sizes for {count} pages")
    return given.tobytes()
