"""Flush requests: drops pages from the index and from the disk on request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from pagetier.daemon.common.namespaces import means
from pagetier.daemon.disk.disk_tier import DiskTier
from pagetier.daemon.index.scan_queue import ScanQueue
from pagetier.shm._core import Owner, TierFlag
from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import FORGET_KEYS, Flush, Flushed, Forget

_TIERS: Final = {None: TierFlag.BOTH, "memory": TierFlag.MEMORY, "disk": TierFlag.DISK}


class _Dropped(msgspec.Struct, frozen=True):
    """The result of a flush.

    Attributes:
        pages: The number of dropped pages.
        kept: The number of pages that stay because they are in use.
        names: The names of the flushed namespaces.
        digests: Their digests.
    """

    pages: int
    kept: int
    names: list[str]
    digests: list[bytes]


class FlushRequests:
    """The flush requests of all clients. On the loop's thread only."""

    def __init__(self, owner: Owner, disk: DiskTier, walks: ScanQueue) -> None:
        self._owner = owner
        self._disk = disk
        self._scans = walks

    def serve(self, request: Flush | Forget, reply: Callable[[Flushed], None]) -> None:
        """Drops the pages of namespaces, or those with the given keys; `reply` is called once."""
        if isinstance(request, Forget):
            self._forget(request, reply)
        else:
            self._flush(request, reply)

    def _flush(self, request: Flush, reply: Callable[[Flushed], None]) -> None:
        """Drops the pages of the requested namespaces. Pages in use are kept and counted.

        See ScanQueue for when this happens.

        Args:
            request: The namespaces and the tier.
            reply: Called once. `trouble` is "" when the pages have left the disk too, so that the next daemon does not
                find them. Otherwise the disk is down or hangs, and this daemon drops the pages, including those of
                these namespaces that it has not seen on disk yet, when the disk is back. If it ends earlier, they can
                be found.
        """
        self._scans.ask(
            (Flush, request.namespace, request.tier),
            lambda: self._drop(request),
            lambda dropped: self._drop_from_disk(request, dropped, reply),
        )

    def _forget(self, request: Forget, reply: Callable[[Flushed], None]) -> None:
        """Drops pages from all tiers, overwrites their bytes in memory, and discards them on disk.

        Args:
            request: The keys of the pages.
            reply: Called once, as for Flush. Pages of the disk are dropped even while it is down: they are not
                found when it is back.
        """
        if not PAGE_KEYS.is_whole(request.keys) or PAGE_KEYS.count(request.keys) > FORGET_KEYS:
            why = f"{len(request.keys)} bytes are not at most {FORGET_KEYS} keys"
            reply(Flushed(request.number, 0, 0, [], why))
            return
        done = self._owner.forget(request.keys)
        self._disk.forgotten(
            request.keys, lambda trouble: reply(Flushed(request.number, done.dropped, done.kept, [], trouble))
        )

    def _drop(self, request: Flush) -> _Dropped:
        tiers = _TIERS.get(request.tier, TierFlag(0))
        spaces = [s for s in self._owner.spaces() if means(request.namespace, s.name, s.digest)]
        done = [self._owner.flush(space.number, tiers) for space in spaces]
        point("service.flushed")
        return _Dropped(
            sum(flushed.dropped for flushed in done),
            sum(flushed.kept for flushed in done),
            [space.name for space in spaces],
            [space.digest for space in spaces],
        )

    def _drop_from_disk(self, request: Flush, done: _Dropped, reply: Callable[[Flushed], None]) -> None:
        def answer(trouble: str) -> None:
            reply(Flushed(request.number, done.pages, done.kept, done.names, trouble))

        if _TIERS.get(request.tier, TierFlag(0)) & TierFlag.DISK:
            self._disk.flushed(None if request.namespace is None else done.digests, answer, request.namespace or "")
        else:
            answer("")
