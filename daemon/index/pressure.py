"""Limits how much of the arena one attachment may pin, and reports which attachments leave no room for others."""

from __future__ import annotations

import logging
from typing import Final

from pagetier.daemon.common.log_throttle import LogThrottle
from pagetier.daemon.index.engine_names import EngineNames
from pagetier.daemon.index.quotas import share_of
from pagetier.shm._core import AttachmentRecord, Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

_NAMED: Final = 3


class PinQuota:
    """The pin quota, which engines apply themselves, and a report of the pins when no page can be evicted.

    An engine pins pages without a message to the daemon: it counts its own pins and ends its matches at the quota. A
    process that writes the lock words itself can exceed it; the log names it when a store is rejected for lack of room.
    On the loop's thread only.
    """

    def __init__(self, owner: Owner, names: EngineNames, share: float) -> None:
        self._owner = owner
        self._names = names
        self._arena_bytes = owner.header().arena_bytes
        self._bounded = 0
        self._logged: set[tuple[int, int]] = set()
        self._throttle = LogThrottle(log, most=1)
        self.follow(share)

    def follow(self, share: float) -> None:
        """Applies another share from now on. Pages that are pinned stay pinned."""
        self._owner.set_pin_quota(share_of(self._owner.header(), share))

    def check(self) -> None:
        """Logs once for each attachment whose matches end at the quota. Cheap, for a call a few times a second."""
        before, self._bounded = self._bounded, self._owner.matches_at_quota()
        if self._bounded > before:
            attachments = [attachment for attachment in self._owner.attachments() if attachment.counts.bounded]
            for attachment in attachments:
                self._log_limited(attachment)
            self._logged &= {_name_of(attachment) for attachment in attachments}

    def full(self) -> None:
        """Logs at most once a minute which attachments have the arena pinned.

        Called when a store was rejected as full.
        """
        if not self._throttle.allows():
            return
        attachments = sorted(self._owner.attachments_with_pins(), key=lambda one: one.pinned_bytes, reverse=True)
        if sum(one.pinned_bytes for one in attachments) * 2 >= self._arena_bytes:
            self._log_pins(attachments)

    def _log_limited(self, attachment: AttachmentRecord) -> None:
        if _name_of(attachment) in self._logged:
            return
        self._logged.add(_name_of(attachment))
        log.warning(
            "%s has reached its quota of pinned pages (match.share): its matches end there",
            self._names.of(attachment),
            extra=event("pins_bounded", **self._facts(attachment)),
        )

    def _log_pins(self, attachments: list[AttachmentRecord]) -> None:
        first = attachments[0]
        named = ", ".join(f"{self._names.of(one)} {one.pinned_bytes >> 20} MiB" for one in attachments[:_NAMED])
        log.warning(
            "stores are rejected, most of the arena (%d MiB) is pinned: %s; end one of them or raise arena.size",
            self._arena_bytes >> 20,
            named,
            extra=event("arena_pinned", **self._facts(first), pinned_bytes=first.pinned_bytes),
        )

    def _facts(self, attachment: AttachmentRecord) -> dict[str, object]:
        """Returns the fields of a log line about an attachment."""
        return {
            "pid": self._names.pid_of(attachment),
            "engine": attachment.name,
            "slot": attachment.slot,
            "uid": attachment.uid,
        }


def _name_of(attachment: AttachmentRecord) -> tuple[int, int]:
    """Returns a key that identifies the attachment."""
    return attachment.slot, attachment.attached_ns


class Shortage:
    """Logs when the arena cannot get more memory from the host. On the loop's thread only.

    Frames without memory are not granted, so engines continue. A populated arena never lacks memory.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._lacked = False
        self._throttle = LogThrottle(log, most=1)

    def check(self) -> None:
        """Logs a new shortage, at most once a minute. Cheap, for a call a few times a second."""
        before, self._lacked = self._lacked, self._owner.lacks_memory
        if self._lacked and not before and self._throttle.allows():
            log.warning(
                "no memory for more of the arena: pages are evicted early, stores rejected, until /dev/shm has room",
                extra=event("arena_short"),
            )
