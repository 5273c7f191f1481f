"""Makes room in a full table of namespaces: drops those that were not used for ten minutes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final, Protocol

from pagetier.daemon.common import loop_clock
from pagetier.daemon.common.log_throttle import UNKNOWN_USER, LogThrottle
from pagetier.daemon.common.namespaces import IdleCounts, printable
from pagetier.daemon.config.schema import IndexOptions
from pagetier.shm import clock
from pagetier.shm._core import IdleResult, NamespaceRecord, Owner
from pagetier.shm.failpoints import point
from pagetier.shm.log_format import event
from pagetier.shm.units import counted, spell_duration

log = logging.getLogger(__name__)

_NS: Final = 1e9
_CHECK_EVERY_S: Final = 1.0
_PAGES_AT_ONCE: Final = 1024  # checked or dropped before other requests are handled: less than a millisecond
_SLICE_S: Final = 0.002  # then other requests are handled
_SPARE: Final = 64  # records that are kept free, if namespaces are idle: new models come with several groups
_SPARE_PART: Final = 4  # but at most this part of the table


class FlushableTier(Protocol):
    """The disk tier, from which dropped pages are removed too. See DiskTier.flushed()."""

    def flushed(self, digests: Collection[bytes] | None, then: Callable[[str], None]) -> None:
        """Drops the pages of these namespaces, which have left the index, from disk."""


class IdleNamespaces:
    """Drops idle namespaces from a full table, the oldest first, a few at a time. On the loop's thread only.

    The index reuses records without pages first. `IndexOptions` says what counts as a use;
    shm/core/daemon/idle_namespaces.h describes how the daemon detects it.
    """

    def __init__(self, owner: Owner, index: IndexOptions, disk: FlushableTier) -> None:
        self.counts = IdleCounts()
        self._owner = owner
        self._disk = disk
        self._throttle = LogThrottle(log)
        self._warnings = LogThrottle(log, most=1)
        self._limit = owner.header().spaces
        self._reserve = max(1, min(_SPARE, self._limit // _SPARE_PART))
        self._left = 0  # namespaces to drop before the table is checked again
        self._due = 0.0
        self._rejected = False  # since an idle namespace was dropped
        self._idle = index.namespace_idle

    def reject(self) -> str:
        """Counts a request for which there is no record, and returns the reason for its client."""
        self.counts.rejected += 1
        self._rejected = True
        self._due = 0.0
        return (
            f"the table of {self._limit:,} namespaces is full; those unused for {spell_duration(self._idle)} are"
            " dropped: retry later, or use fewer namespaces at once"
        )

    def make_room(self) -> bool:
        """Drops the oldest idle namespace for a request: new ones may come faster than poll() drops old ones.

        One with many pages takes several slices: the request is rejected, and may be repeated.

        Returns:
            Whether the table has a record for the request now.
        """
        return self._drop_until(lambda result: result is not IdleResult.MORE) is IdleResult.DROPPED

    def poll(self) -> None:
        """Does a small part of the work if there is any. Called a few times a second."""
        # The table is checked once a second, but what it lacks then is dropped slice by slice at every call.
        if not self._left and loop_clock.now() >= self._due:
            self._due = loop_clock.now() + _CHECK_EVERY_S
            self._left = max(0, self._reserve - self._owner.spare_spaces())
        if self._left:
            self._drop_until(lambda _: not self._left)

    def _drop_until(self, is_done: Callable[[IdleResult], bool]) -> IdleResult:
        """Drops namespaces until enough is done, for two milliseconds at most. Returns the last result."""
        ends = loop_clock.now() + _SLICE_S
        while not is_done(result := self._drop()) and loop_clock.now() < ends:
            pass
        return result

    def _drop(self) -> IdleResult:
        step = self._owner.drop_idle(int(self._idle * _NS), _PAGES_AT_ONCE)
        point("idle_namespaces.stepped")
        # A step ends after some pages, so that other requests are handled; the core remembers where to continue.
        if step.namespace is not None:
            self._left = max(0, self._left - 1)
            self._dropped(step.namespace, step.pages)
        elif step.result is IdleResult.NOTHING:
            self._left = 0
            self._warn()
        return step.result

    def _dropped(self, space: NamespaceRecord, pages: int) -> None:
        self._rejected = False
        self.counts.dropped += 1
        # The pages have left the index, and the disk must forget them, too: the next daemon would find them there.
        self._disk.flushed([space.digest], _ignore)
        idle = (clock.now_ns() - space.used_ns) / _NS
        facts = event("namespace_dropped", namespace=printable(space.name), pages=pages, idle=round(idle))
        self._throttle.log(
            logging.INFO,
            UNKNOWN_USER,
            "namespace %r dropped after %.0f s without use, the table is full (%d): %s evicted",
            printable(space.name),
            idle,
            self._limit,
            counted(pages, "page"),
            extra=facts,
        )

    def _warn(self) -> None:
        """Logs a warning if stores were rejected and no namespace is idle."""
        rejected, self._rejected = self._rejected, False
        if not rejected or not self._warnings.count_line():
            return
        log.warning(
            "new namespaces rejected, %d used in %s: let engines use fewer namespaces at once",
            self._limit,
            spell_duration(self._idle),
            extra=event("namespaces_full", rejected=self.counts.rejected),
        )


def _ignore(trouble: str) -> None:
    """Ignores why pages may still be on disk: the tier drops them when it is back."""
