"""The metrics of one sample, with the names that dashboards and alerts use: new ones may be added, none is renamed.

The names follow the rules of prometheus.io: base units, `_total` on counters, one unit and one meaning for a family.
The sum of a family over its labels is meaningful, except over the tiers of a lookup: a miss in one is a lookup in the
next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
from prometheus_client.metrics_core import InfoMetricFamily, Metric

from pagetier import __version__
from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.metrics.disk_families import disk_families
from pagetier.daemon.metrics.instruments import (
    DISK,
    ENGINE,
    MEMORY,
    PREFIX,
    counter,
    counters,
    gauge,
    gauges,
    histogram,
)
from pagetier.daemon.metrics.lookup_families import lookup_families, prediction_families
from pagetier.daemon.metrics.sample import Sample
from pagetier.daemon.stats.frame_advice import pages_that_fit
from pagetier.daemon.status.eviction_report import EvictionState
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.phase import Phase
from pagetier.shm._core import FORMAT, SLOTS
from pagetier.shm.protocol import PROTOCOL

OTHERS = "others"


def space_families(sample: Sample, most: int) -> Iterator[Metric]:
    """Yields the pages and bytes of the `most` namespaces with the most bytes, and of all others together."""
    yield gauge("namespaces", "Namespaces that have pages.", len(sample.spaces))
    yield gauge("namespaces_limit", "The most namespaces.", sample.header.spaces)
    counts = sample.idle_namespaces
    about = "Idle namespaces dropped from a full table; of this daemon."
    yield counter("namespaces_dropped", about, counts.dropped)
    about = "Requests rejected because the table of namespaces was full; of this daemon."
    yield counter("namespaces_rejected", about, counts.rejected)
    ordered = sorted(sample.spaces, key=lambda space: -(space.bytes + space.disk_bytes))
    pages, nbytes = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for at, space in enumerate(ordered):
        # Namespaces of the same name, which only their digests distinguish, are added up.
        name = OTHERS if at >= most else space.name
        pages.update({(name, MEMORY): space.pages, (name, DISK): space.disk_pages})
        nbytes.update({(name, MEMORY): space.bytes, (name, DISK): space.disk_bytes})
    about = "of a namespace; on disk: in memory too or not."
    yield gauges("namespace_pages", f"Pages {about}", ["namespace", "tier"], pages)
    yield gauges("namespace_bytes", f"Bytes {about}", ["namespace", "tier"], nbytes)


_BUILD = {"version": __version__, "protocol": str(PROTOCOL), "format": str(FORMAT)}
_NS = 1_000_000_000
_FLEET_STANDINGS = ("none", "starting", "open", "down")
_FLEET_RESULTS = ("found", "absent", "late", "errors", "refused")
_FLEET_PAGES = ("read", "unread", "written", "present", "gone", "dropped", "failed", "damaged", "foreign")


def families(sample: Sample, most_spaces: int) -> Iterator[Metric]:
    """Yields all metrics."""
    yield from _daemon(sample)
    yield from lookup_families(sample)
    yield from _tiers(sample)
    yield from _transfers(sample)
    yield from _leaving(sample)
    yield from _reservations(sample)
    yield from _hints(sample.hints)
    yield from prediction_families(sample)
    yield from disk_families(sample)
    yield from _fleet(sample.fleet, sample.question_seconds)
    yield from space_families(sample, most_spaces)
    yield from quota_families(sample)


def _daemon(sample: Sample) -> Iterator[Metric]:
    header = sample.header
    yield InfoMetricFamily(PREFIX + "build", "The running version.", value=_BUILD)
    progress = sample.progress
    phases = {phase.value: float(progress.phase is phase) for phase in Phase}
    yield gauges("phase", "The phase of the daemon: 1 for one of these.", ["phase"], phases)
    about = "How far the daemon is with populating the arena, or with writing pages at its stop."
    yield gauge("phase_progress_ratio", about, progress.share)
    yield gauge("incarnation", "Daemons that these segments have had.", header.incarnation)
    yield gauge("attached_processes", "Attachments, the disk tier's worker included.", sample.attached)
    yield gauge("attached_processes_limit", "The most attachments.", SLOTS)
    yield counter("departures", "Attached processes that left or died.", header.deaths)
    yield counter("owner_deaths", "Attached processes that died without leaving; of this daemon.", sample.deaths)
    entries = {"used": header.entries - header.free_entries, "free": header.free_entries}
    yield gauges("index_entries", "Entries of the index.", ["state"], entries)
    about = "Pages that daemons adopted at their start, or had to drop."
    adoptions = {"adopted": header.adopted, "dropped": header.dropped}
    yield counters("adoptions", about, ["result"], adoptions)
    huge: dict[str, float | None] = msgspec.structs.asdict(sample.huge_pages)
    if known := {segment: share for segment, share in huge.items() if share is not None}:
        about = "The share of a segment that is in huge pages; missing before Linux 6.7."
        yield gauges("huge_page_ratio", about, ["segment"], known)


def _tiers(sample: Sample) -> Iterator[Metric]:
    header, work = sample.header, sample.work
    frame = header.frame_bytes
    memory, disk = header.used_frames * frame, header.disk_used_frames * frame
    limits = {MEMORY: header.arena_bytes, DISK: work.report.cap}
    yield gauges("tier_limit_bytes", "The cap of a tier.", ["tier"], limits)
    frames = {MEMORY: header.frames, DISK: header.disk_frames or work.report.room_frames}
    about = "Bytes of the frames that fit under a tier's cap; on disk headers and trees take the rest."
    yield gauges("tier_room_bytes", about, ["tier"], {tier: count * frame for tier, count in frames.items()})
    in_memory, on_disk = (header.used_frames, header.pages), (header.disk_used_frames, header.disk_pages)
    fitting = {
        MEMORY: pages_that_fit(frames[MEMORY], in_memory, on_disk),
        DISK: pages_that_fit(frames[DISK], on_disk, in_memory),
    }
    if known := {tier: count for tier, count in fitting.items() if count is not None}:
        about = "Pages that fit if further ones are as large as those in the tier; in an empty one, as in the other."
        yield gauges("tier_room_pages", about, ["tier"], known)
    pages = {
        (MEMORY, "readable"): max(0, header.pages - header.open_entries),
        (MEMORY, "writing"): header.open_entries,
        (DISK, "readable"): header.disk_pages,
        (DISK, "writing"): work.writing,
    }
    yield gauges("pages", "Pages of a tier.", ["tier", "state"], pages)
    # The bytes that a tier's pages take, the unused rest of their frames, and the free bytes add up to its room.
    sizes = {
        (MEMORY, "pages"): header.bytes,
        (MEMORY, "slack"): max(0, memory - header.bytes),
        (MEMORY, "free"): max(0, frames[MEMORY] * frame - memory),
        (DISK, "pages"): min(disk, header.disk_bytes),  # fewer than they have if they are compressed
        (DISK, "slack"): max(0, disk - header.disk_bytes),
        (DISK, "free"): max(0, frames[DISK] * frame - disk),
    }
    about = "Bytes of a tier's room by content; compressed pages with what they take."
    yield gauges("tier_bytes", about, ["tier", "state"], sizes)


def _transfers(sample: Sample) -> Iterator[Metric]:
    header, counts, work = sample.header, sample.counts, sample.work
    ways = ["source", "destination"]
    nbytes = {
        (ENGINE, MEMORY): counts.stored_bytes,
        (MEMORY, ENGINE): counts.loaded_bytes,
        (MEMORY, DISK): header.disk_written_bytes,
        (DISK, MEMORY): header.disk_read_bytes,
    }
    yield counters("transfer_bytes", "Bytes of pages that were moved.", ways, nbytes)
    pages = {
        (ENGINE, MEMORY): counts.stored_pages,
        (MEMORY, ENGINE): counts.loaded_pages,
        (MEMORY, DISK): header.disk_written,
        (DISK, MEMORY): header.disk_read,
    }
    yield counters("transfer_pages", "Pages, or parts of pages, that were moved.", ways, pages)
    seconds = {
        (ENGINE, MEMORY): counts.store_ns / _NS,
        (MEMORY, ENGINE): counts.load_ns / _NS,
        (MEMORY, DISK): work.write_seconds,
        (DISK, MEMORY): work.read_seconds,
    }
    about = "Time of the moves; of engines: the sum over concurrent copies; of the disk: of this daemon."
    yield counters("transfer_seconds", about, ways, seconds)


def _leaving(sample: Sample) -> Iterator[Metric]:
    header = sample.header
    pages = {
        (MEMORY, "room"): header.evicted,
        (MEMORY, "flushed"): header.flushed,
        (MEMORY, "expired"): header.expired,
        (MEMORY, "given_up"): max(0, header.doomed - header.expired),
        (DISK, "room"): header.disk_evicted,
        (DISK, "flushed"): header.disk_flushed,
        (DISK, "damaged"): header.disk_damaged,
    }
    about = "Pages that left a tier, by reason; given_up: before they were complete."
    yield counters("evictions", about, ["tier", "reason"], pages)
    nbytes = {MEMORY: header.evicted_bytes, DISK: header.disk_evicted_bytes}
    yield counters("evicted_bytes", "Bytes of pages that left a tier to make room.", ["tier"], nbytes)
    yield counter("lost_pages", "Pages that left memory before they were written to disk.", header.disk_lost)
    eviction = sample.eviction
    states = {(eviction.policy, state.value): float(eviction.state is state) for state in EvictionState}
    about = "The order in which pages leave memory: 1 for one of the states of the configured policy."
    yield gauges("eviction_policy", about, ["policy", "state"], states)
    about = "Changes between the learned order of eviction and that of LRU; of this daemon."
    yield counter("eviction_switches", about, eviction.switches)
    about = "Pages that were not stored, because those in memory are expected to be used sooner; of this daemon."
    yield counter("left_out_pages", about, eviction.left_out)


def _hints(hints: HintReport) -> Iterator[Metric]:
    pages = {"applied": hints.applied, "absent": hints.absent, "without_effect": hints.without_effect}
    about = "Pages that hints named; absent: in no tier, or beyond evict.keep_share; without effect:"
    about += " evict.policy is lru; of this daemon."
    yield counters("hint_pages", about, ["result"], pages)
    yield counter("hints_wrong", "Hints that were ignored because they were invalid; of this daemon.", hints.wrong)
    yield gauge("kept_bytes", "Bytes that are kept in memory by request.", hints.kept_bytes)
    about = "Requests to keep pages that ended before their time, in favour of others; of this daemon."
    yield counter("keeps_ended_early", about, hints.keeps_ended_early)


def _reservations(sample: Sample) -> Iterator[Metric]:
    header = sample.header
    pages = {
        "granted": header.granted,
        "present": header.present,
        "pending": header.pending,
        "refused": header.refused,
    }
    yield counters("reservations", "Pages, or parts of pages, that engines asked room for.", ["result"], pages)
    yield counter("unpublished_pages", "Pages that were written but could not be published.", sample.counts.lost_pages)
    about = "From a request for room to its response; of this daemon."
    yield histogram("reserve_latency_seconds", about, sample.reserve_seconds)


def _fleet(fleet: FleetStatus, question_seconds: Histogram) -> Iterator[Metric]:
    standings = {standing: float(fleet.standing == standing) for standing in _FLEET_STANDINGS}
    yield gauges("remote_standing", "The state of the fleet: 1 for one of these.", ["standing"], standings)
    yield gauge("remote_breaker_open", "1 while the fleet does not answer and is not asked.", fleet.breaker_open)
    yield counter("remote_breaker_openings", "How often the circuit breaker opened; of this daemon.", fleet.openings)
    results = {result: getattr(fleet, result) for result in _FLEET_RESULTS}
    yield counters("remote_questions", "Questions to the fleet; of this daemon.", ["result"], results)
    about = "From a question to its answer, without late ones; of this daemon."
    yield histogram("remote_question_latency_seconds", about, question_seconds)
    pages = {result: getattr(fleet, result) for result in _FLEET_PAGES}
    yield counters("remote_pages", "Pages by what became of them; of this daemon.", ["result"], pages)
    nbytes = {"read": fleet.read_bytes, "written": fleet.written_bytes, "dropped": fleet.dropped_bytes}
    about = "Bytes that the store got for the pages that were written; of this daemon."
    yield counter("remote_stored_bytes", about, fleet.stored_bytes)
    yield counters("remote_bytes", "Bytes of pages that were moved or dropped; of this daemon.", ["result"], nbytes)
    yield gauge("remote_queue_bytes", "Bytes that wait to be written to the fleet.", fleet.queued_bytes)
    yield gauge("remote_lent_bytes", "Bytes of the worker's buffers that are in use.", fleet.lent_bytes)
    yield counter("remote_worker_restarts", "Restarts of the fleet's worker.", fleet.restarts)


def quota_families(sample: Sample) -> Iterator[Metric]:
    """Yields what each tenant may have and has; nothing without quotas."""
    if not sample.tenants:
        return
    header, labels = sample.header, ["quota", "tier"]
    memory, disk = header.arena_bytes, header.disk_frames * header.frame_bytes
    used, least, most = dict[tuple[str, str], float](), dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for tenant in sample.tenants:
        in_memory, on_disk = (tenant.name, MEMORY), (tenant.name, DISK)
        used |= {in_memory: tenant.arena_frames * header.frame_bytes, on_disk: tenant.disk_frames * header.frame_bytes}
        least |= {in_memory: tenant.arena_minimum * memory, on_disk: tenant.disk_minimum * disk}
        most |= {in_memory: tenant.arena_maximum * memory, on_disk: tenant.disk_maximum * disk}
    about = "Bytes of the frames that a tenant has; as the next three only with quotas."
    yield gauges("quota_used_bytes", about, labels, used)
    yield gauges("quota_minimum_bytes", "Bytes of a tenant below which it loses no page to others.", labels, least)
    yield gauges("quota_maximum_bytes", "Bytes that a tenant may have.", labels, most)
    rejected = {tenant.name: sample.quota_rejections.get(tenant.pattern, 0) for tenant in sample.tenants}
    about = "Requests with pages that were refused because of this quota; of this daemon."
    yield counters("quota_rejected_requests", about, ["quota"], rejected)
