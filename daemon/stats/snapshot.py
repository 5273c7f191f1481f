"""The state of a running cache as typed values; snapshot_reader.py reads it.

The fields are the keys of `pagetier stats --json`: new ones may be added, none is renamed. Counters start when the
segments are created, and continue over restarts of the daemon. While the daemon works, two numbers may be from slightly
different moments.
"""

from __future__ import annotations

import msgspec

from pagetier.daemon.stats.frame_advice import frame_advice
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.stats.size_advice import AbsentTokens
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import Phase
from pagetier.shm.units import counted


class PageTier(msgspec.Struct, frozen=True, kw_only=True):
    """A tier of the cache.

    Attributes:
        cap: Bytes that the tier may use; 0 if this daemon has no such tier.
        room: Bytes of the frames that fit under the cap. On disk headers and trees take the rest.
        room_pages: Pages that fit, if further ones are as large as those in the tier; in an empty one as in the other
            one. None if that is empty too.
        used: Bytes in use, in whole frames; fewer than `bytes` if the pages are compressed.
        pages: Pages in the tier, including those that are being written.
        hits: Memory: pages that the first match of a request found. Disk: pages that were read in time.
        misses: Memory: pages that the first match did not find. Disk: pages that were not read in time.
        flushed: Pages that were dropped on request.
        bytes_in: Bytes stored into the tier.
        bytes_out: Bytes loaded from the tier.
    """

    cap: int = 0
    room: int = 0
    room_pages: int | None = None
    used: int = 0
    pages: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    flushed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Hits per page looked up, or read from disk; None before the first one."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

    @property
    def pages_text(self) -> str:
        """How many pages the tier has, and if that is known how many fit: "3 of 40 pages"."""
        return "no page" if self.room_pages is None else f"{self.pages:,} of {counted(self.room_pages, 'page')}"


class Tiers(msgspec.Struct, frozen=True, kw_only=True):
    """The tiers, nearest first."""

    memory: PageTier
    disk: PageTier = PageTier()


class NamespaceStats(msgspec.Struct, frozen=True, kw_only=True):
    """A namespace: pages that were computed alike.

    Attributes:
        label: The model and the first digits of the digest.
        digest: Hexadecimal.
        pages: Pages in memory.
        disk_pages: Pages on disk, including those that are in memory too.
        disk_stored: Bytes that they take there: fewer than `disk_bytes` if they are compressed.
    """

    label: str
    digest: str
    page_tokens: int
    pages: int
    bytes: int
    disk_pages: int = 0
    disk_bytes: int = 0
    disk_stored: int = 0


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """An attached client. A process may have several.

    Attributes:
        slot: The number of the attachment.
        pid: The process ID, 0 if the daemon does not know its PID where it runs.
        unjudged: Nothing says whether the process lives. Its slot is kept until it attaches again or is reclaimed.
        pins: Pages that the client has pinned now.
        pinned_bytes: Bytes of the frames of these pages.
        lookups: Requests that were looked up, each counted once.
        bounded: Matches that ended at arena.process_share, including repeated ones.
        hits: Pages found by the first matches of requests.
        misses: Pages not found by the first matches of requests.
        lost_pages: Pages written in vain, since their reservation had been revoked.
    """

    slot: int
    pid: int
    uid: int
    name: str
    age_seconds: float
    pins: int
    pinned_bytes: int = 0
    lookups: int
    bounded: int = 0
    hits: int
    misses: int
    loaded_pages: int
    loaded_bytes: int
    stored_pages: int
    stored_bytes: int
    lost_pages: int
    unjudged: bool = False


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """Responses to requests for memory, in pages or parts of pages.

    Attributes:
        writing: Pages that are being written now.
        present: Pages that were readable already.
        pending: Pages that another writer was writing.
        doomed: Pages that were abandoned before they were complete.
        expired: Those among them whose reservation expired.
    """

    writing: int
    granted: int
    present: int
    pending: int
    refused: int
    doomed: int
    expired: int


class DaemonStats(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon and its index.

    Attributes:
        segments: The ID of the segments, hexadecimal; new segments have another one.
        incarnation: The number of daemons that have used these segments.
        entries: Pages that the index can hold.
        namespaces: Namespaces that the index can hold.
        departed: Clients that left or died.
        unjudged: Slots of which nothing says whether their process lives (`pagetier doctor`).
        adopted: Pages that daemons took over from earlier ones.
        dropped: Pages that daemons could not take over.
        phase: starting, serving or stopping; unknown if the status in memory is damaged. Engines can attach from
            serving on.
        progress: How far it is with populating the arena or with writing at its stop, from 0 to 1.
    """

    phase: Phase = Phase.SERVING
    progress: float = 1.0
    build: str
    segments: str
    incarnation: int
    frame_bytes: int
    entries: int
    free_entries: int
    namespaces: int
    departed: int
    unjudged: int = 0
    adopted: int
    dropped: int

    @property
    def phase_text(self) -> str:
        """The phase with its progress, if it has one: "serving", "starting, 25 %"."""
        return self.phase.value + (f", {100 * self.progress:.0f} %" if self.progress < 1 else "")


class DiskWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the disk tier, in pages.

    Attributes:
        lost: Pages evicted before they could be written.
        skipped: Pages not written, since the budget did not allow it.
        failed: Pages that the disk could not write.
        damaged: Pages that failed verification.
    """

    written: int
    read: int
    lost: int
    skipped: int
    failed: int = 0
    damaged: int


class TierQuota(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant may have of a tier, and has.

    Attributes:
        minimum: Others evict none of its pages below this share.
        maximum: The tenant evicts its own pages above this share.
        share: The share that it has.
        used: Bytes of the frames that it has.
    """

    minimum: float
    maximum: float
    share: float
    used: int


class TenantStats(msgspec.Struct, frozen=True, kw_only=True):
    """The namespaces that share a quota.

    Attributes:
        quota: The pattern of their names; "others": no pattern matches them.
    """

    quota: str
    memory: TierQuota
    disk: TierQuota


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state of a cache.

    absent: tokens that were not found, since the segments were created; disk: the state of the disk tier; eviction:
    which page leaves memory first; hints: since the daemon started; huge_pages: how much of the segments is in huge
    pages; tenants: what quotas allow and what is used, none without quotas; fleet: since the daemon started.
    """

    daemon: DaemonStats
    tiers: Tiers
    disk: DiskReport
    disk_work: DiskWork
    lookups: LookupStats
    absent: AbsentTokens = AbsentTokens()
    stores: StoreStats
    eviction: EvictionReport = EvictionReport()
    hints: HintReport = HintReport()
    huge_pages: HugePageReport = HugePageReport()
    tenants: tuple[TenantStats, ...] = ()
    fleet: FleetStatus = FleetStatus()
    namespaces: tuple[NamespaceStats, ...]
    clients: tuple[ClientStats, ...]

    @property
    def frame_advice(self) -> str:
        """A warning if frames are much larger than the pages in them; "" if they fit."""
        memory = self.tiers.memory
        return frame_advice(memory.pages, memory.bytes, memory.used)
