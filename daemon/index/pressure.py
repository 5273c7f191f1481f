"""How much of the arena one attachment may have pinned, and who has it where that is in the way of others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from pagetier.daemon.index.quotas import share_of
from pagetier.shm._core import Owner
from pagetier.shm.log_format import event

log = logging.getLogger(__name__)

TELL_EVERY_S: Final = 60.0
_NAMED: Final = 3


class PinQuota:
    """The bound that engines keep to by themselves, and a look at who pins when nothing can be evicted.

    A pin is taken without a message: an engine counts its own and ends its matches at the bound. Who writes lock words
    himself is not held to it; he is named when a store is refused for want of room. On the loop's thread only.
    """

    def __init__(self, owner: Owner, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._clock = clock
        self._arena_bytes = owner.header()["arena_bytes"]
        self._bounded = 0
        self._told: set[tuple[int, int]] = set()
        self._quiet_until = -TELL_EVERY_S
        self.follow(share)

    def follow(self, share: float) -> None:
        """Another share from now on; what is pinned stays so."""
        self._owner.bound_pins(share_of(self._owner.header(), share))

    def look(self) -> None:
        """Tells once of each attachment whose matches end at the bound. Cheap: for a few times a second."""
        before, self._bounded = self._bounded, self._owner.bounded()
        if self._bounded > before:
            takers = [taker for taker in self._owner.takers() if taker["counts"]["bounded"]]
            for taker in takers:
                self._tell_of(taker)
            self._told &= {_name_of(taker) for taker in takers}

    def full(self) -> None:
        """A store was refused for want of room: tells who has the arena pinned, if anybody has, now and then."""
        if self._clock() < self._quiet_until:
            return
        self._quiet_until = self._clock() + TELL_EVERY_S
        holders = sorted(self._owner.holders(), key=_pinned, reverse=True)
        if sum(map(_pinned, holders)) * 2 >= self._arena_bytes:
            self._tell_of_all(holders)

    def _tell_of(self, taker: dict[str, Any]) -> None:
        if _name_of(taker) in self._told:
            return
        self._told.add(_name_of(taker))
        log.warning(
            "process %d (%s) has as much of the arena pinned as one may: its matches end there: see match.share",
            taker["pid"],
            taker["name"],
            extra=event("pins_bounded", pid=taker["pid"], engine=taker["name"], slot=taker["slot"]),
        )

    def _tell_of_all(self, holders: list[dict[str, Any]]) -> None:
        first = holders[0]
        named = ", ".join(f"process {h['pid']} ({h['name']}) {_pinned(h) >> 20} MiB" for h in holders[:_NAMED])
        log.warning(
            "stores are refused: of the arena's %d MiB are pinned by %s: end one of them, or give them a larger arena",
            self._arena_bytes >> 20,
            named,
            extra=event("arena_pinned", pid=first["pid"], engine=first["name"], pinned_bytes=_pinned(first)),
        )


def _pinned(holder: dict[str, Any]) -> int:
    nbytes: int = holder["pinned_bytes"]
    return nbytes


def _name_of(taker: dict[str, Any]) -> tuple[int, int]:
    """Another one for each attachment."""
    return taker["slot"], taker["attached_ns"]


class Shortage:
    """Looks whether the arena can have no more memory, and tells so when it begins. On the loop's thread only.

    Engines go on: nobody is granted what there is not. An arena that was populated never lacks any.
    """

    def __init__(self, owner: Owner, clock: Callable[[], float] = time.monotonic) -> None:
        self._owner = owner
        self._clock = clock
        self._lacked = False
        self._quiet_until = -TELL_EVERY_S

    def look(self) -> None:
        """Cheap: for a few times a second."""
        before, self._lacked = self._lacked, self._owner.lacks_memory
        if self._lacked and not before and self._clock() >= self._quiet_until:
            self._quiet_until = self._clock() + TELL_EVERY_S
            log.warning(
                "there is no memory for more of the arena: pages leave early and stores are refused until /dev/shm"
                ' has room again; arena.prefault = "populate" takes all of it at the start',
                extra=event("arena_short"),
            )
