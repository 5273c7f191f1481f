"""The status of the fleet, as `pagetier stats` shows it."""

from __future__ import annotations

from typing import Literal

import msgspec

from pagetier.tiers.base import FleetState


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet since the daemon started.

    The fields are keys of `pagetier stats --json`: new ones may be added, none is renamed.

    Attributes:
        url: The store, without secrets.
        standing: none, starting, open or down.
        trouble: Why it is down, or its last fault; "" if there is none.
        note: What the worker reported about the store.
        breaker_open: Engines do not ask, because the fleet does not answer.
        openings: How often the breaker opened.
        opened_at: When it opened last, in seconds since 1970; 0 if never.
        found: Questions to which the fleet had the first page or others.
        absent: Questions to which it had none.
        late: Questions that it did not answer in time.
        errors: Questions that it could not answer.
        refused: Questions that were not asked.
        read: Pages that were read from the fleet.
        unread: Pages that were located and could not be read.
        rate: Bytes per second at which pages were read, a moving mean; 0 if not known.
        written: Pages that were written.
        stored_bytes: Bytes that the store got for them: fewer than `written_bytes` if pages were compressed.
        present: Pages that the fleet had already.
        gone: Pages that left memory before they could be written.
        dropped: Pages that were not written because the queue was full.
        failed: Pages that could not be written until they left memory, or at all.
        given_up: Why the last of these could not be written, "" if there is none.
        waiting: Pages that could not be written and are tried again.
        write_trouble: Why they wait, "" if none does.
        queued_bytes: Bytes that wait to be written.
        lent_bytes: Bytes of the worker's buffers that are in use.
        damaged: Objects that did not contain what was written.
        foreign: Objects that were written with another fleet key.
        restarts: Restarts of the worker.
    """

    url: str = ""
    standing: Literal["none", "starting", "open", "down"] = "none"
    trouble: str = ""
    note: str = ""
    breaker_open: bool = False
    openings: int = 0
    opened_at: float = 0.0
    found: int = 0
    absent: int = 0
    late: int = 0
    errors: int = 0
    refused: int = 0
    read: int = 0
    read_bytes: int = 0
    unread: int = 0
    rate: float = 0.0
    written: int = 0
    written_bytes: int = 0
    stored_bytes: int = 0
    present: int = 0
    gone: int = 0
    dropped: int = 0
    dropped_bytes: int = 0
    failed: int = 0
    given_up: str = ""
    waiting: int = 0
    write_trouble: str = ""
    queued_bytes: int = 0
    lent_bytes: int = 0
    damaged: int = 0
    foreign: int = 0
    restarts: int = 0

    def with_worker(self, state: FleetState) -> dict[str, object]:
        """Returns the fields that a worker's state sets, when this was the status before that worker."""
        return {
            "url": state.url,
            "lent_bytes": state.lent_bytes,
            "note": state.note,
            "damaged": self.damaged + state.damaged,
            "foreign": self.foreign + state.foreign,
        }
