"""Asks the daemon what the fleet has, to read pages into memory, to drop those of a namespace, and to note hints."""

from __future__ import annotations

from typing import Final

import msgspec

from pagetier.client.attachment import Attachment
from pagetier.client.hints import Hint, require_hint
from pagetier.client.keys import Keys, Namespace, require_keys
from pagetier.client.pending_request import PendingRequest, PendingResult
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import LinkError
from pagetier.shm.page_rows import PAGE_KEYS, PAGE_SIZES, PAGES_TO_FIND
from pagetier.shm.protocol import (
    HINT_KEYS,
    Answer,
    Fetch,
    Fetched,
    FetchLocated,
    FetchOutcome,
    Flush,
    Flushed,
    HintPages,
    Locate,
    Located,
    Space,
)

RESPONSE_S: Final = 0.1
"""Seconds within which a healthy daemon answers, beyond the time that the disk was given."""

_IN_MEMORY: Final = bytes([FetchOutcome.IN_MEMORY])
_NOTHING: Final = Located(0, b"")
"""No page is in the fleet, as far as is known."""


class FleetPages(msgspec.Struct, frozen=True, eq=False):
    """Which pages of a request the fleet has.

    Attributes:
        pages: The pages, rows of LOCATED_PAGES; the size is 0 if the fleet does not have one.
        table: The namespaces.
    """

    pages: bytes
    table: tuple[Space, ...]


class Prefetch(PendingResult[int]):
    """A request to read pages of a prompt from disk into memory. Made by Client.prefetch(). Thread-safe.

    It pins nothing, and dropping it does not cancel the prefetch. The daemon may evict the pages again at any time:
    they can be used once a match has pinned them. In a forked child it is ready, with no pages in memory.

    Attributes:
        pages: The number of pages that were requested.
    """

    def __init__(self, pending: PendingRequest[int], pages: int) -> None:
        super().__init__(pending)
        self.pages = pages

    def wait(self, timeout: float) -> int:
        """Returns how many pages, from the first on, were in memory when the daemon answered. May be called again.

        Waits at most `timeout` seconds; 0 without a response by then.
        """
        return self._pending.wait(timeout)

    def __repr__(self) -> str:
        state = f"{self.wait(0.0)} in memory" if self.ready else "requested"
        return f"<Prefetch of {self.pages} pages, {state}>"


def locate_pages(
    attachment: Attachment, pages: bytes, table: tuple[Space, ...], timeout: float
) -> PendingRequest[Located]:
    """Returns a request to locate pages, sent without waiting for the response. Without pages no request is sent.

    Args:
        attachment: The attachment of this process.
        pages: Rows of PAGES_TO_FIND.
        table: The namespaces.
        timeout: Seconds for sending.
    """
    linked = attachment.linked if pages else None
    count = PAGES_TO_FIND.count(pages)

    def accept(answer: Answer) -> Located | None:
        return answer if isinstance(answer, Located) and PAGE_SIZES.count(answer.sizes) == count else _NOTHING

    link = linked.link if linked else None
    pending = PendingRequest(
        attachment.requests, link, lambda number: Locate(number, pages, table), accept, lambda _: _NOTHING
    )
    pending.send_and_leave(timeout)
    return pending


def prefetch_request(
    attachment: Attachment, keys: bytes, disk_timeout: float, fleet: FleetPages | None = None
) -> PendingRequest[int]:
    """Returns a request to read pages from disk and from the fleet, which is not sent yet.

    Its result is the number of pages, from the first on, that were in memory when the daemon answered.

    Args:
        attachment: The attachment of this process.
        keys: The keys, 32 bytes each. Without keys no request is sent.
        disk_timeout: Seconds that the disk and the fleet may take.
        fleet: These pages as they were located in the fleet.
    """
    linked = attachment.linked if keys else None
    pages, due = PAGE_KEYS.count(keys), clock.now() + disk_timeout + RESPONSE_S

    def request(number: int) -> Fetch | FetchLocated:
        if fleet is None:
            return Fetch(number, keys, disk_timeout)
        return FetchLocated(number, fleet.pages, disk_timeout, fleet.table)

    def accept(answer: Answer) -> int | None:
        return _in_memory(answer.outcomes[:pages]) if isinstance(answer, Fetched) else None

    return PendingRequest(attachment.requests, linked.link if linked else None, request, accept, lambda _: 0, due)


def _in_memory(outcomes: bytes) -> int:
    return len(outcomes) - len(outcomes.lstrip(_IN_MEMORY))


def flush(attachment: Attachment, namespace: Namespace, deadline: Deadline) -> bool:
    """Drops a namespace's pages. Waits for an attachment in progress, and then for the response.

    Returns:
        Whether the daemon has confirmed before the deadline that no page is left.
    """
    attachment.wait_linked(deadline.left)
    pending = _flush_request(attachment, namespace)
    try:
        pending.send(deadline.left)
        answer = pending.wait(deadline.left)
        pending.leave()
    except BaseException:  # an exception of a signal handler
        pending.leave()
        raise
    return answer is not None and not answer.kept


def _flush_request(attachment: Attachment, namespace: Namespace) -> PendingRequest[Flushed | None]:
    """Returns a request to drop a namespace's pages, which is not sent yet.

    Its result is the response, or None. The daemon waits for the disk before it answers, which may take seconds: a
    missing response does not count as a late daemon.
    """
    linked, digest = attachment.linked, namespace.digest.hex()

    def accept(answer: Answer) -> Flushed | None:
        return answer if isinstance(answer, Flushed) else None

    link = linked.link if linked else None
    return PendingRequest(attachment.requests, link, lambda number: Flush(number, digest), accept, lambda _: None)


def send_hint(attachment: Attachment, keys: Keys, hint: Hint, timeout: float) -> bool:
    """Sends a hint.

    Args:
        attachment: The attachment of this process.
        keys: The pages. Those beyond 65,536 are sent in further messages.
        hint: The hint.
        timeout: Seconds for sending each message.

    Returns:
        Whether there is a daemon that understands hints, and its socket took the message.

    Raises:
        TypeError: `keys` is not Keys, or `hint` not a Hint.
    """
    require_keys(keys, "hint()")
    require_hint(hint)
    linked = attachment.linked
    if linked is None or not linked.takes_hints:
        return False
    try:
        for part in PAGE_KEYS.batches(keys.data, HINT_KEYS):
            linked.link.send(HintPages(0, part, hint.kind, hint.ttl), timeout)
    except LinkError:
        return False
    return True


def require_namespace(value: object) -> None:
    """Raises TypeError if flush() is called without a namespace."""
    if not isinstance(value, Namespace):
        raise TypeError(
            f"flush() takes a Namespace, not {type(value).__name__}: pass that of the keys, or use `pagetier flush`"
        )
