"""What all stores of one copier share: where they reserve memory, and the limits on them."""

from __future__ import annotations

import math
from typing import Final

from pagetier.client.async_copy.job import Counts
from pagetier.client.async_copy.throttle import CopyBacklog
from pagetier.client.keys import Keys
from pagetier.client.paged_blocks import Part
from pagetier.client.pending_reservation import PendingReservation, ReservingClient, reserve_async
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
        self, client: ReservingClient, page_bytes: int, part: Part, backlog: CopyBacklog, settings: CopySettings
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
