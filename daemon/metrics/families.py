"""The metrics of one sample, with the names that dashboards and alerts use: new ones may be added, none is renamed.

The names follow the rules of prometheus.io: base units, `_total` on counters, one unit and one meaning for a family.
The sum of a family over its labels is meaningful, except over the tiers of a lookup: a miss in one is a lookup in the
next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import TypeAlias

import msgspec
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from pagetier.daemon.common.eviction_report import EvictionState
from pagetier.daemon.common.frame_advice import pages_that_fit
from pagetier.daemon.disk.status import DiskReport, HintReport, Phase, Standing
from pagetier.daemon.metrics.sample import Sample
from pagetier.shm._core import FORMAT, SLOTS
from pagetier.shm.protocol import PROTOCOL

PREFIX = "pagetier_"

Numbers: TypeAlias = Mapping[str, float] | Mapping[tuple[str, str], float]
"""Numbers by the value of the one label, or by the values of both labels in their order."""


def counter(name: str, about: str, value: float) -> Metric:
    """Returns one number that only rises; `name` is without the suffix `_total`, which is added."""
    return CounterMetricFamily(PREFIX + name, about, value=value)


def counters(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Returns numbers that only rise."""
    family = CounterMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def gauge(name: str, about: str, value: float) -> Metric:
    """Returns one number that rises and falls."""
    return GaugeMetricFamily(PREFIX + name, about, value=value)


def gauges(name: str, about: str, labels: Sequence[str], numbers: Numbers) -> Metric:
    """Returns numbers that rise and fall."""
    family = GaugeMetricFamily(PREFIX + name, about, labels=labels)
    return _filled(family, numbers)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, numbers: Numbers) -> Metric:
    for values, number in numbers.items():
        family.add_metric((values,) if isinstance(values, str) else values, number)
    return family


def disk_families(sample: Sample) -> Iterator[Metric]:
    """Yields the metrics of the disk tier."""
    report, header = sample.work.report, sample.header
    standings = {standing.value: float(report.standing is standing) for standing in Standing}
    yield gauges("disk_standing", "The state of the disk tier: 1 for one of these.", ["standing"], standings)
    yield counter("checksum_failures", "Pages whose bytes on disk failed their checksum.", header.disk_damaged)
    about = "Pages that the disk did not write, by rule or because it could not."
    yield counter("write_skipped_pages", about, header.disk_skipped)
    if report.standing is not Standing.NONE:
        yield _queue(sample)
        yield from _worker(report)
        yield from _budget(report)


def _queue(sample: Sample) -> Metric:
    # Each page is listed once, regardless of the number of tiers that it is in.
    unwritten = sum(max(0, space.listed - space.disk_pages) for space in sample.spaces)
    pages = {"waiting": max(0, unwritten - sample.work.writing), "writing": sample.work.writing}
    about = "Pages in memory only: waiting to be written, and being written."
    return gauges("write_behind_queue_pages", about, ["state"], pages)


def _worker(report: DiskReport) -> Iterator[Metric]:
    yield counter("disk_worker_restarts", "Restarts of the worker.", report.restarts)
    yield gauge("disk_last_sync_timestamp_seconds", "Time of the last complete sync; 0: never.", report.last_sync)
    yield gauge("disk_file_bytes", "Bytes that the files of the tier take.", report.file_bytes)
    yield counter("disk_device_bytes", "Bytes handed to the file system, trees included.", report.device_bytes)
    filesystem = {"free": report.disk_free, "used": max(0, report.disk_total - report.disk_free)}
    yield gauges("disk_filesystem_bytes", "The file system of the tier.", ["state"], filesystem)


def _budget(report: DiskReport) -> Iterator[Metric]:
    budget = report.budget
    if budget is not None:
        bytes_of_day = {"left": budget.left, "spent": max(0, budget.per_day - budget.left)}
        yield gauges("disk_budget_bytes", "Bytes that may be written a day.", ["state"], bytes_of_day)
        skipped = {"budget": budget.skipped_bytes}
        yield counters("write_skipped_bytes", "Bytes that were not written, by reason.", ["reason"], skipped)


OTHERS = "others"


def space_families(sample: Sample, most: int) -> Iterator[Metric]:
    """Yields the pages and bytes of the `most` namespaces with the most bytes, and of all others together."""
    yield gauge("namespaces", "Namespaces in the index.", len(sample.spaces))
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
        pages.update({(name, _MEMORY): space.pages, (name, _DISK): space.disk_pages})
        nbytes.update({(name, _MEMORY): space.bytes, (name, _DISK): space.disk_bytes})
    about = "of a namespace; on disk: in memory too or not."
    yield gauges("namespace_pages", f"Pages {about}", ["namespace", "tier"], pages)
    yield gauges("namespace_bytes", f"Bytes {about}", ["namespace", "tier"], nbytes)


_BUILD = {"version": version("pagetier"), "protocol": str(PROTOCOL), "format": str(FORMAT)}
_NS = 1_000_000_000
_ENGINE, _MEMORY, _DISK = "engine", "memory", "disk"


def families(sample: Sample, most_spaces: int) -> Iterator[Metric]:
    """Yields all metrics."""
    yield from _daemon(sample)
    yield from _lookups(sample)
    yield from _tiers(sample)
    yield from _transfers(sample)
    yield from _leaving(sample)
    yield from _reservations(sample)
    yield from _hints(sample.hints)
    yield from disk_families(sample)
    yield from space_families(sample, most_spaces)


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
        yield gauges("huge_page_ratio", "The share of a segment that is in huge pages.", ["segment"], known)


def _lookups(sample: Sample) -> Iterator[Metric]:
    header, counts = sample.header, sample.counts
    yield counter("lookups", "Requests that were looked up, each counted once.", counts.lookups)
    pages = {
        (_MEMORY, "hit"): counts.hit_pages,
        (_MEMORY, "miss"): counts.miss_pages,
        (_DISK, "hit"): header.disk_read,
        (_DISK, "miss"): header.disk_missed,
    }
    about = "Pages that a request's first match looked up in memory; pages that the disk was asked to read."
    yield counters("lookup_pages", about, ["tier", "result"], pages)
    on_disk, missed = counts.disk_tokens, counts.missed_tokens
    tokens = {(_MEMORY, "hit"): counts.memory_tokens, (_MEMORY, "miss"): on_disk + missed}
    if sample.work.report.standing is not Standing.NONE:
        tokens |= {(_DISK, "hit"): on_disk, (_DISK, "miss"): missed}
    about = "Tokens of looked-up prompts: a hit in the tier that gave them; disk: of those not found in memory."
    yield counters("lookup_tokens", about, ["tier", "result"], tokens)


def _tiers(sample: Sample) -> Iterator[Metric]:
    header, work = sample.header, sample.work
    frame = header.frame_bytes
    memory, disk = header.used_frames * frame, header.disk_used_frames * frame
    limits = {_MEMORY: header.arena_bytes, _DISK: work.report.cap}
    yield gauges("tier_limit_bytes", "The cap of a tier.", ["tier"], limits)
    frames = {_MEMORY: header.frames, _DISK: header.disk_frames or work.report.room_frames}
    about = "Bytes of the frames that fit under a tier's cap; on disk headers and trees take the rest."
    yield gauges("tier_room_bytes", about, ["tier"], {tier: count * frame for tier, count in frames.items()})
    fitting = {
        _MEMORY: pages_that_fit(frames[_MEMORY], header.used_frames, header.pages),
        _DISK: pages_that_fit(frames[_DISK], header.disk_used_frames, header.disk_pages),
    }
    about = "Pages that fit into a tier, if further ones are as large as those in it; in an empty one a frame each."
    yield gauges("tier_room_pages", about, ["tier"], fitting)
    pages = {
        (_MEMORY, "readable"): max(0, header.pages - header.open_entries),
        (_MEMORY, "writing"): header.open_entries,
        (_DISK, "readable"): header.disk_pages,
        (_DISK, "writing"): work.writing,
    }
    yield gauges("pages", "Pages of a tier.", ["tier", "state"], pages)
    # The bytes of a tier's pages, the unused rest of their frames, and the free bytes add up to its room.
    sizes = {
        (_MEMORY, "pages"): header.bytes,
        (_MEMORY, "slack"): max(0, memory - header.bytes),
        (_MEMORY, "free"): max(0, frames[_MEMORY] * frame - memory),
        (_DISK, "pages"): header.disk_bytes,
        (_DISK, "slack"): max(0, disk - header.disk_bytes),
        (_DISK, "free"): max(0, frames[_DISK] * frame - disk),
    }
    yield gauges("tier_bytes", "Bytes of a tier by content.", ["tier", "state"], sizes)


def _transfers(sample: Sample) -> Iterator[Metric]:
    header, counts, work = sample.header, sample.counts, sample.work
    ways = ["source", "destination"]
    nbytes = {
        (_ENGINE, _MEMORY): counts.stored_bytes,
        (_MEMORY, _ENGINE): counts.loaded_bytes,
        (_MEMORY, _DISK): header.disk_written_bytes,
        (_DISK, _MEMORY): header.disk_read_bytes,
    }
    yield counters("transfer_bytes", "Bytes of pages that were moved.", ways, nbytes)
    pages = {
        (_ENGINE, _MEMORY): counts.stored_pages,
        (_MEMORY, _ENGINE): counts.loaded_pages,
        (_MEMORY, _DISK): header.disk_written,
        (_DISK, _MEMORY): header.disk_read,
    }
    yield counters("transfer_pages", "Pages, or parts of pages, that were moved.", ways, pages)
    seconds = {
        (_ENGINE, _MEMORY): counts.store_ns / _NS,
        (_MEMORY, _ENGINE): counts.load_ns / _NS,
        (_MEMORY, _DISK): work.write_seconds,
        (_DISK, _MEMORY): work.read_seconds,
    }
    about = "Time of the moves; of engines: the sum over concurrent copies; of the disk: of this daemon."
    yield counters("transfer_seconds", about, ways, seconds)


def _leaving(sample: Sample) -> Iterator[Metric]:
    header = sample.header
    pages = {
        (_MEMORY, "room"): header.evicted,
        (_MEMORY, "flushed"): header.flushed,
        (_MEMORY, "expired"): header.expired,
        (_MEMORY, "given_up"): max(0, header.doomed - header.expired),
        (_DISK, "room"): header.disk_evicted,
        (_DISK, "flushed"): header.disk_flushed,
        (_DISK, "damaged"): header.disk_damaged,
    }
    yield counters("evictions", "Pages that left a tier, by reason.", ["tier", "reason"], pages)
    nbytes = {_MEMORY: header.evicted_bytes, _DISK: header.disk_evicted_bytes}
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
    about = "Pages that hints named: applied, absent, or without effect because of evict.policy; of this daemon."
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
    seconds = sample.reserve_seconds
    bounds = [*(f"{bound:g}" for bound in seconds.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, seconds.cumulative()), strict=True))
    about = "From a request for room to its response; of this daemon."
    yield HistogramMetricFamily(PREFIX + "reserve_latency_seconds", about, buckets=buckets, sum_value=seconds.sum)
