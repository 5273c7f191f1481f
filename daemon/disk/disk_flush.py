"""Writes all pages in memory to disk while a client polls for the progress, and counts the pages that a stop loses.

A flush changes no step of write-behind, only the rule: all pages are written, not only those that are about to leave.
When none is left, the devices are synced, and only then the flush reports that all is done: what it reports survives a
power loss. It ends by itself if the client no longer polls, because nothing else would restore the rule.
"""

from __future__ import annotations

import logging
from typing import Final

from pagetier.daemon.common import loop_clock
from pagetier.daemon.disk.write_behind import WriteBehind
from pagetier.shm._core import Owner, UnwrittenPages, WriteRule
from pagetier.shm.log_format import event
from pagetier.shm.protocol import Saved
from pagetier.shm.units import counted, format_size

_ASKED_AGAIN_S: Final = 2.0


class DiskFlush:
    """A flush of all pages to an open tier. On the loop's thread only."""

    def __init__(self, owner: Owner, write_behind: WriteBehind) -> None:
        self._owner, self._write_behind = owner, write_behind
        self._until = 0.0

    def ask(self, number: int) -> Saved:
        """Returns the progress.

        Each client counts its requests from 0: its first request retries the pages that could not be written before.
        """
        self.go_on()
        if not self._write_behind.flush_all or number == 0:
            self._write_behind.flush_all = True
            self._write_behind.try_again()
            self._owner.disk_rule(self._write_behind.rule)
        self._write_behind.write_due()
        left = self._owner.unwritten()
        if not left.pages:
            self._write_behind.sync_soon()
        synced = not left.pages and not self._write_behind.busy
        why_skipped = "" if left.pages else self._why_skipped(left.skipped)
        trouble = self._write_behind.stalled() or why_skipped or self._write_behind.trouble
        return Saved(number, left.pages, left.bytes, synced=synced, trouble=trouble)

    def go_on(self) -> None:
        """Continues the flush for two more seconds: a client polls, or its request is in the queue."""
        self._until = loop_clock.now() + _ASKED_AGAIN_S

    def end_when_due(self) -> None:
        """Ends the flush when no client has polled for two seconds. Called a few times a second."""
        if self._write_behind.flush_all and loop_clock.now() > self._until:
            self._write_behind.flush_all = False
            self._owner.disk_rule(self._write_behind.rule)

    @property
    def memory_only_reason(self) -> str:
        """The reason why some pages are in memory only although the flush has ended."""
        return self._write_behind.refusal or "disk.size is too small for all"

    def _why_skipped(self, pages: int) -> str:
        return f"{counted(pages, 'page')} in memory only: {self.memory_only_reason}" if pages else ""


log = logging.getLogger("pagetierd.disk")


def require_on_disk(owner: Owner) -> UnwrittenPages:
    """Changes the write rule to cover all pages.

    Returns:
        The pages that an open tier lacks, according to its worker's reports so far. The bytes of pages that are too
        large for the tier are not counted.
    """
    skipped = owner.unwritten().skipped
    owner.disk_rule(WriteRule.THROUGH)  # with this rule the bytes of all pages that can be written are reported
    left = owner.unwritten()
    return UnwrittenPages(left.pages + left.skipped, left.bytes, skipped)


def in_memory(owner: Owner) -> UnwrittenPages:
    """Returns all pages: the content of a tier that is not open is unknown."""
    header = owner.header()
    return UnwrittenPages(header.pages, header.bytes, 0)


def log_lost(lost: UnwrittenPages, why: str) -> None:
    """Logs a warning if pages are lost."""
    if lost.pages:
        log.warning(
            "%s (%s) released from memory, not known to be on disk: %s",
            counted(lost.pages, "page"),
            format_size(lost.bytes),
            why,
            extra=event("disk_unwritten", pages=lost.pages, bytes=lost.bytes),
        )
