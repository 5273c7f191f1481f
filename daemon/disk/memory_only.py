"""What a stop loses: the pages that are in memory alone when the disk tier ends."""

from __future__ import annotations

import logging

import msgspec

from pagetier.daemon.disk.write_behind import RULES
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event
from pagetier.shm.units import format_size

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
