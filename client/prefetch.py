"""Prefetches: requests that the daemon reads pages from disk or the fleet into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pagetier.client.attachment import Attachment
from pagetier.client.fleet_lookup import FleetPages
from pagetier.client.pending_request import PendingRequest
from pagetier.shm import clock
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import Answer, Fetch, Fetched, FetchLocated, FetchOutcome

RESPONSE_S: Final = 0.1
"""Seconds within which a healthy daemon answers, beyond the time that the disk was given."""

_IN_MEMORY: Final = bytes([FetchOutcome.IN_MEMORY])


class Prefetch:
    """A request to read pages of a prompt from disk into memory. Made by Client.prefetch(). Thread-safe.

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

    def call_when_ready(self, call: Callable[[], object]) -> None:
        """Calls `call` when the prefetch is ready, in any thread, or at once.

        Args:
            call: Never waits or raises an exception. It may be called twice.
        """
        self._pending.call = call
        if self._pending.ready:
            call()

    def wait(self, timeout: float) -> int:
        """Returns how many pages, from the first on, were in memory when the daemon answered. May be called again.

        Waits at most `timeout` seconds; 0 without a response by then.
        """
        return self._pending.wait(timeout)

    def __repr__(self) -> str:
        state = f"{self.wait(0.0)} in memory" if self.ready else "requested"
        return f"<Prefetch of {self.pages} pages, {state}>"


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
