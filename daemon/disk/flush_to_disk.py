"""Writing all that is in memory: as long as somebody goes on to ask how far it is."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from pagetier.daemon.config.schema import DiskOptions
from pagetier.daemon.disk.write_behind import RULES, WriteBehind
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event
from pagetier.shm.protocol import Saved
from pagetier.shm.units import format_size

_ASKED_AGAIN_S: Final = 2.0


class Saving:
    """Of an open tier. On the loop's thread only."""

    def __init__(
        self, owner: Owner, options: DiskOptions, behind: WriteBehind, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._owner, self._behind, self._loop = owner, behind, loop
        self._rule = RULES[options.write]
        self._until = 0.0

    def ask(self, number: int) -> Saved:
        """How far it is. Each asker counts from 0: what could not be written is tried again for it."""
        self.go_on()
        if not self._behind.all_wanted or number == 0:
            self._behind.all_wanted = True
            self._behind.try_again()
            self._owner.disk_rule(RULES["through"])
        self._behind.look()
        pages, nbytes, spared = self._owner.unwritten()
        if not pages:
            self._behind.sync_soon()
        synced = not pages and not self._behind.busy
        trouble = self._behind.stalled() or (self._why_spared(spared) if not pages else "") or self._behind.trouble
        return Saved(number, pages, nbytes, synced=synced, trouble=trouble)

    def go_on(self) -> None:
        """Somebody asks, or waits for his turn to."""
        self._until = self._loop.time() + _ASKED_AGAIN_S

    def end_when_due(self) -> None:
        """A few times a second: nobody asks any more."""
        if self._behind.all_wanted and self._loop.time() > self._until:
            self._behind.all_wanted = False
            self._owner.disk_rule(self._rule)

    @property
    def why_not_all(self) -> str:
        """Why pages stay in memory alone though all are written."""
        return self._behind.refusal or "disk.size is too small for all"

    def _why_spared(self, pages: int) -> str:
        return f"{pages:,} pages stay in memory alone: {self.why_not_all}" if pages else ""


log = logging.getLogger("pagetierd.disk")


class Alone(msgspec.Struct, frozen=True):
    """Pages in memory alone. spared: how many of them the tier was not to have, or let go."""

    pages: int
    nbytes: int
    spared: int = 0


def alone(owner: Owner) -> Alone:
    """Those that an open tier lacks, as far as its worker has told. Of those that it can not hold no bytes are counted.

    All are wanted by the tier from now on.
    """
    _, _, spared = owner.unwritten()
    owner.disk_rule(RULES["through"])  # of what is wanted the bytes are told, too
    pages, nbytes, larger = owner.unwritten()
    return Alone(pages + larger, nbytes, spared)


def in_memory(owner: Owner) -> Alone:
    """All of them: what a tier has that is not open nobody knows."""
    header = owner.header()
    return Alone(header["pages"], header["bytes"])


def tell_lost(lost: Alone, why: str) -> None:
    """Says so in the log, unless there is nothing to say."""
    if lost.pages:
        log.warning(
            "%d pages (%s) are gone from memory and not known to be on disk: %s",
            lost.pages,
            format_size(lost.nbytes),
            why,
            extra=event("disk_unwritten", pages=lost.pages, bytes=lost.nbytes),
        )
