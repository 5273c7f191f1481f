"""Takes a snapshot of a running cache from shared memory, without a request to the daemon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from pagetier.daemon.common.namespaces import with_pages
from pagetier.daemon.stats.frame_advice import pages_that_fit
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.daemon.stats.size_advice import AbsentTokens
from pagetier.daemon.stats.snapshot import (
    ClientStats,
    DaemonStats,
    DiskWork,
    NamespaceStats,
    PageTier,
    Snapshot,
    StoreStats,
    TenantStats,
    TierQuota,
    Tiers,
)
from pagetier.daemon.status.daemon_status import DaemonStatus, unpack
from pagetier.daemon.status.disk_report import DiskReport
from pagetier.daemon.status.tenant_use import TenantUse
from pagetier.daemon.workers.supervisor import DISK_WORKER, FLEET_WORKER
from pagetier.shm import clock
from pagetier.shm._core import AttachmentCounts, AttachmentRecord, IndexHeader, NamespaceRecord, Observer
from pagetier.shm.protocol import BUILD

_NS = 1_000_000_000
_READS = 1000
_T = TypeVar("_T", bound=msgspec.Struct)


def take_snapshot(observer: Observer) -> Snapshot:
    """Returns the current state.

    Takes the observing process some milliseconds for a million pages, and the daemon nothing.
    """
    return snapshot_with(observer, with_pages(observer.spaces()))


def snapshot_with(observer: Observer, spaces: Iterable[NamespaceRecord]) -> Snapshot:
    """Returns the current state with these namespaces only, as there may be many thousands."""
    header, counts = observer.header(), observer.counts()
    status = read_status(observer)
    report = status.disk
    return Snapshot(
        daemon=_daemon(header, status),
        tiers=Tiers(memory=_memory(header, counts), disk=_disk(header, report)),
        disk=report,
        disk_work=_disk_work(header),
        lookups=_pick(LookupStats, counts),
        absent=_absent(observer),
        stores=_pick(StoreStats, header, writing=header.open_entries),
        eviction=status.eviction,
        hints=status.hints,
        huge_pages=status.huge_pages,
        tenants=tuple(_tenant(header, tenant) for tenant in status.tenants),
        fleet=status.fleet,
        namespaces=tuple(map(_namespace, spaces)),
        clients=tuple(_client(slot, status) for slot in observer.attachments_with_pins() if _is_shown(slot, status)),
    )


def _daemon(header: IndexHeader, status: DaemonStatus) -> DaemonStats:
    return _pick(
        DaemonStats,
        header,
        phase=status.progress.phase,
        progress=status.progress.share,
        build=BUILD,
        segments=f"{header.segments_id:016x}",
        namespaces=header.spaces,
        departed=header.deaths,
        unjudged=len(status.unjudged),
    )


def _taken(header: IndexHeader) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the frames in use and the pages in them, of memory and of the disk."""
    return (header.used_frames, header.pages), (header.disk_used_frames, header.disk_pages)


def _memory(header: IndexHeader, counts: AttachmentCounts) -> PageTier:
    return PageTier(
        cap=header.arena_bytes,
        room=header.arena_bytes,
        room_pages=pages_that_fit(header.frames, *_taken(header)),
        used=header.used_frames * header.frame_bytes,
        pages=header.pages,
        bytes=header.bytes,
        hits=counts.hit_pages,
        misses=counts.miss_pages,
        evictions=header.evicted,
        evicted_bytes=header.evicted_bytes,
        flushed=header.flushed,
        bytes_in=counts.stored_bytes,
        bytes_out=counts.loaded_bytes,
    )


def _disk(header: IndexHeader, report: DiskReport) -> PageTier:
    frames = header.disk_frames or report.room_frames
    return PageTier(
        cap=report.cap,
        room=frames * header.frame_bytes,
        room_pages=pages_that_fit(frames, *reversed(_taken(header))),
        used=header.disk_used_frames * header.frame_bytes,
        pages=header.disk_pages,
        bytes=header.disk_bytes,
        hits=header.disk_read,
        misses=header.disk_missed,
        evictions=header.disk_evicted,
        evicted_bytes=header.disk_evicted_bytes,
        flushed=header.disk_flushed,
        bytes_in=header.disk_written_bytes,
        bytes_out=header.disk_read_bytes,
    )


def _disk_work(header: IndexHeader) -> DiskWork:
    return DiskWork(
        written=header.disk_written,
        read=header.disk_read,
        lost=header.disk_lost,
        skipped=header.disk_skipped,
        failed=header.disk_failed,
        damaged=header.disk_damaged,
    )


def _absent(observer: Observer) -> AbsentTokens:
    known = observer.lookups()
    return AbsentTokens.of(known.absent_ever) if known is not None else AbsentTokens()


def read_status(observer: Observer) -> DaemonStatus:
    """Returns the status of the daemon, which changes about once a second."""
    for _ in range(_READS):
        text = observer.status()
        if text is not None:
            return unpack(text)
    return DaemonStatus()


def _namespace(space: NamespaceRecord) -> NamespaceStats:
    return _pick(NamespaceStats, space, label=space.name, digest=space.digest.hex())


def _tenant(header: IndexHeader, use: TenantUse) -> TenantStats:
    memory = _tier_quota(use.arena_minimum, use.arena_maximum, use.arena_frames, header.frames, header.frame_bytes)
    disk = _tier_quota(use.disk_minimum, use.disk_maximum, use.disk_frames, header.disk_frames, header.frame_bytes)
    return TenantStats(quota=use.name, memory=memory, disk=disk)


def _tier_quota(minimum: float, maximum: float, used: int, frames: int, frame_bytes: int) -> TierQuota:
    share = round(used / frames, 4) if frames else 0.0
    return TierQuota(minimum=minimum, maximum=maximum, share=share, used=used * frame_bytes)


def _is_client(slot: AttachmentRecord) -> bool:
    """Returns whether an attachment is a client, not a worker."""
    return slot.token != 0 or slot.name not in (DISK_WORKER, FLEET_WORKER)


def _is_shown(slot: AttachmentRecord, status: DaemonStatus) -> bool:
    """Returns whether a slot is a client's, or is that of a dead daemon's worker and needs an administrator."""
    return _is_client(slot) or slot.slot in status.unjudged


def _client(slot: AttachmentRecord, status: DaemonStatus) -> ClientStats:
    counts = slot.counts
    age = max(0.0, (clock.now_ns() - slot.attached_ns) / _NS)
    more = {"age_seconds": round(age, 3), "hits": counts.hit_pages, "misses": counts.miss_pages}
    more |= {"unjudged": slot.slot in status.unjudged}
    more |= {"pid": 0} if slot.slot in status.unseen else {}
    return msgspec.convert(slot._asdict() | counts._asdict() | more, ClientStats)


def _pick(kind: type[_T], numbers: IndexHeader | AttachmentCounts | NamespaceRecord, **more: Any) -> _T:
    """Returns a `kind` with the values of the same names in `numbers`, and `more`."""
    return msgspec.convert(numbers._asdict() | more, kind)
