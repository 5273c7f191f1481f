"""What all stores of one copier share, and the request of one of them for memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from pagetier.client.async_copy.job import Counts
from pagetier.client.async_copy.throttle import CopyBacklog
from pagetier.client.attachment import AttachedClient
from pagetier.client.keys import Keys
from pagetier.client.paged_blocks import Part
from pagetier.client.pending_reservation import PendingReservation, reserve_async
from pagetier.client.reservation import Reservation
from pagetier.kernels.config.copy_settings import CopySettings

_RETRY_S: Final = 2e-3
# An empty socket buffer takes a request for this number of pages as a whole. Of a longer request it may take a part,
# and a request that is sent in part ends the attachment, so longer requests get some time.
_SENT_AT_ONCE: Final = 1500
_SENDING_S: Final = 0.25


class StoreResources:
    """What all stores of one copier share: where they reserve memory, the limits on them, and their counts.

    Attributes:
        backlog: Limits the granted pages that are not copied yet.
        settings: The other limits.
        counts: The pages and bytes of all stores.
        next_attempt: The time before which no request is sent, because the daemon's socket was full.
    """

    def __init__(
        self, client: AttachedClient, page_bytes: int, part: Part, backlog: CopyBacklog, settings: CopySettings
    ) -> None:
        self.backlog, self.settings, self.counts = backlog, settings, Counts()
        self._client, self._page_bytes, self._part = client, page_bytes, part
        self.next_attempt = -math.inf

    def reserve(self, keys: Keys, now: float) -> PendingReservation | None:
        """Requests memory for pages, without waiting for the response.

        Returns:
            The request, or None if it cannot be sent now: if the daemon's socket is full, all stores wait 2 ms.
        """
        if now < self.next_attempt:
            return None
        sending = 0.0 if len(keys) <= _SENT_AT_ONCE else min(_SENDING_S, self.settings.reserve_timeout)
        pending = reserve_async(self._client, keys, self._page_bytes, self._part, sending)
        if pending.unsent:
            self.next_attempt = now + _RETRY_S
            return None
        return pending


class MemoryRequest:
    """The request of one store for memory: it may be delayed, is repeated while the socket is full, and has a limit.

    For the thread of the stream queue, except for `delay`.

    Attributes:
        delay: Seconds from the first poll() until the request is sent. Any thread may set it to 0.
        gave_up: Whether the daemon's time was over without a response.
    """

    def __init__(self, resources: StoreResources, keys: Keys, delay: float) -> None:
        self.delay, self.gave_up = delay, False
        self._resources, self._keys = resources, keys
        self._begins_at = self._give_up_at = math.inf
        self._pending: PendingReservation | None = None

    def poll(self, now: float, wake: Callable[[], object]) -> Reservation | None:
        """Returns the reservation once the daemon has answered, after sending the request as soon as that is possible.

        `wake` is called when the response has come.
        """
        if self.delay and self._is_delayed(now):
            return None
        if self._pending is None:
            # The time starts with the first attempt to send: the daemon has no part in a delay by the device.
            self._give_up_at = min(self._give_up_at, now + self._resources.settings.reserve_timeout)
            self._pending = self._resources.reserve(self._keys, now)
            if self._pending is not None:
                self._pending.call_when_ready(wake)
        if self._pending is not None and self._pending.ready:
            return self._pending.wait(0.0)
        self.gave_up = now >= self._give_up_at
        if self.gave_up and self._pending is not None:
            # What the daemon grants later is abandoned as soon as its response is read.
            self._pending.give_up(self._resources.settings.reserve_timeout)
        return None

    def cancel(self) -> None:
        """Gives up all pages that were or will be granted, unless poll() has returned them."""
        if self._pending is not None:
            self._pending.cancel()

    def retry_after(self, now: float) -> float:
        """Returns the seconds after which poll() has something to do even if no response comes."""
        if self.delay and self._is_delayed(now):
            return self._begins_at - now
        ends = self._give_up_at if self._pending is not None else min(self._give_up_at, self._resources.next_attempt)
        return max(0.0, ends - now)

    def _is_delayed(self, now: float) -> bool:
        """Starts the delay at the first call. Returns whether it still runs."""
        self._begins_at = min(self._begins_at, now + self.delay)
        return now < self._begins_at
