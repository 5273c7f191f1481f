"""What is known of lookups outlives a stop that releases the memory, on a device of the disk tier."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pagetier.daemon.workers.worker_process import CommandSender
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event
from pagetier.tiers.worker_protocol import SaveLookups

log = logging.getLogger("pagetierd.disk")


def save_lookups(owner: Owner, senders: Iterable[CommandSender]) -> None:
    """Sends what is known of lookups to the first of the workers that have opened their device."""
    send = next(iter(senders), None)
    if send is not None and (lookups := owner.save_lookups()):
        send(SaveLookups(lookups))


def restore_lookups(owner: Owner, lookups: bytes) -> None:
    """Continues what was saved before the last stop."""
    if not owner.restore_lookups(lookups):
        line = "what the disk has of earlier lookups is damaged, or of another format or frame size: it is ignored"
        log.warning(line, extra=event("lookups_dropped"))
