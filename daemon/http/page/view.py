"""What the page shows, read at one moment."""

from __future__ import annotations

from heapq import nlargest
from typing import Final

import msgspec

from pagetier.daemon.common.namespaces import with_pages
from pagetier.daemon.http.notable_events import NotableEvent
from pagetier.daemon.http.page.token_history import Totals
from pagetier.daemon.stats.size_advice import SizeAdvice, read_advice
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import snapshot_with
from pagetier.shm._core import NamespaceRecord, Observer

MOST_NAMESPACES: Final = 20


class OtherNamespaces(msgspec.Struct, frozen=True):
    """The namespaces that have no row of their own, and their bytes in memory and on disk."""

    number: int
    bytes: int
    disk_bytes: int


class LastHour(msgspec.Struct, frozen=True, kw_only=True):
    """What the HTTP process has counted in the last hour.

    Attributes:
        began: When it began, in seconds since 1970.
        minutes: What the totals rose by in each minute, oldest first.
        total: What they rose by in all of them.
        written_per_day: Bytes written a day at that rate; None: not known yet.
    """

    began: float
    minutes: list[Totals]
    total: Totals
    written_per_day: float | None


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows.

    Attributes:
        host: The name of the host.
        at: The time in seconds since 1970.
        snapshot: The state, with the largest namespaces only.
        others: The other namespaces.
        advice: What lookups would find with other sizes; None before the first one.
        hour: The last hour.
        events: The last notable events, the latest first.
    """

    host: str
    at: float
    snapshot: Snapshot
    others: OtherNamespaces
    advice: SizeAdvice | None
    hour: LastHour
    events: tuple[NotableEvent, ...]


class Cache(msgspec.Struct, frozen=True):
    """A snapshot with the largest namespaces, the others, and the advice."""

    snapshot: Snapshot
    others: OtherNamespaces
    advice: SizeAdvice | None


def read_cache(observer: Observer, policy: str) -> Cache:
    """Returns what the index has. The namespaces are listed once, because there may be many thousands.

    Args:
        observer: Reads the cache.
        policy: `evict.policy`.
    """
    spaces = with_pages(observer.spaces())
    largest = nlargest(MOST_NAMESPACES, spaces, key=_size)
    shown = {space.number for space in largest}
    rest = [space for space in spaces if space.number not in shown]
    others = OtherNamespaces(len(rest), sum(one.bytes for one in rest), sum(one.disk_bytes for one in rest))
    return Cache(snapshot_with(observer, largest), others, read_advice(observer, (), policy))


def _size(space: NamespaceRecord) -> tuple[int, int]:
    return max(space.bytes, space.disk_bytes), space.bytes
