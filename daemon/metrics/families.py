"""The metrics of one look, under the names that dashboards and alerts know: they are added to, never renamed.

Named after the rules of prometheus.io: base units, `_total` on counters, one unit and one meaning in a family. A family
can be added over its labels, but for the tiers of a lookup: what is missed in one is looked for in the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client.metrics_core import HistogramMetricFamily, InfoMetricFamily, Metric

from pagetier.daemon.disk.status import Standing
from pagetier.daemon.metrics.disk_families import disk_families
from pagetier.daemon.metrics.family_builders import PREFIX, counter, counters, gauge, gauges
from pagetier.daemon.metrics.sample import Look
from pagetier.daemon.metrics.space_families import space_families
from pagetier.shm._core import FORMAT, SLOTS
from pagetier.shm.protocol import PROTOCOL

_BUILD = {"version": version("pagetier"), "protocol": str(PROTOCOL), "format": str(FORMAT)}
_NS = 1_000_000_000
_ENGINE, _MEMORY, _DISK = "engine", "memory", "disk"


def families(look: Look, most_spaces: int) -> Iterator[Metric]:
    """All of them."""
    yield from _daemon(look)
    yield from _lookups(look)
    yield from _tiers(look)
    yield from _transfers(look)
    yield from _leaving(look)
    yield from _reservations(look)
    yield from disk_families(look)
    yield from space_families(look, most_spaces)


def _daemon(look: Look) -> Iterator[Metric]:
    header = look.header
    yield InfoMetricFamily(PREFIX + "build", "What runs.", value=_BUILD)
    yield gauge("incarnation", "Daemons that these segments have seen.", header["incarnation"])
    yield gauge("attached_processes", "Attachments of engines, the disk tier's worker among them.", look.attached)
    yield gauge("attached_processes_limit", "Attachments that there is room for.", SLOTS)
    yield counter("departures", "Attached processes that left or died.", header["deaths"])
    yield counter("owner_deaths", "Attached processes that died without leaving; of this daemon.", look.deaths)
    entries = {"used": header["entries"] - header["free_entries"], "free": header["free_entries"]}
    yield gauges("index_entries", "Records of pages in the index.", ["state"], entries)
    about = "Pages that daemons took over at their start, or could not."
    taken_over = {"adopted": header["adopted"], "dropped": header["dropped"]}
    yield counters("adoptions", about, ["result"], taken_over)


def _lookups(look: Look) -> Iterator[Metric]:
    header, counts = look.header, look.counts
    yield counter("lookups", "Requests of engines that looked for their prompts, each counted once.", counts["lookups"])
    pages = {
        (_MEMORY, "hit"): counts["hit_pages"],
        (_MEMORY, "miss"): counts["miss_pages"],
        (_DISK, "hit"): header["disk_read"],
        (_DISK, "miss"): header["disk_missed"],
    }
    about = "Pages that a request's first match looked for in memory; pages that the disk was asked to read in time."
    yield counters("lookup_pages", about, ["tier", "result"], pages)
    found, on_disk, missed = (counts[name] for name in ("memory_tokens", "disk_tokens", "missed_tokens"))
    tokens = {(_MEMORY, "hit"): found, (_MEMORY, "miss"): on_disk + missed}
    if look.work.report.standing is not Standing.NONE:
        tokens |= {(_DISK, "hit"): on_disk, (_DISK, "miss"): missed}
    about = "Tokens of looked-for prompts: a hit in the tier that gave them; disk: of those that memory did not give."
    yield counters("lookup_tokens", about, ["tier", "result"], tokens)


def _tiers(look: Look) -> Iterator[Metric]:
    header, work = look.header, look.work
    frame = header["frame_bytes"]
    memory, disk = header["used_frames"] * frame, header["disk_used_frames"] * frame
    limits = {_MEMORY: header["arena_bytes"], _DISK: work.report.cap}
    yield gauges("tier_limit_bytes", "What a tier may take.", ["tier"], limits)
    pages = {
        (_MEMORY, "readable"): max(0, header["pages"] - header["open_entries"]),
        (_MEMORY, "writing"): header["open_entries"],
        (_DISK, "readable"): header["disk_pages"],
        (_DISK, "writing"): work.writing,
    }
    yield gauges("pages", "Pages of a tier.", ["tier", "state"], pages)
    # the bytes of a tier's pages, the unused rest of their frames, and what is free: together its limit
    sizes = {
        (_MEMORY, "pages"): header["bytes"],
        (_MEMORY, "slack"): max(0, memory - header["bytes"]),
        (_MEMORY, "free"): max(0, header["arena_bytes"] - memory),
        (_DISK, "pages"): header["disk_bytes"],
        (_DISK, "slack"): max(0, disk - header["disk_bytes"]),
        (_DISK, "free"): max(0, work.report.cap - disk),
    }
    yield gauges("tier_bytes", "Bytes of a tier by what is in them.", ["tier", "state"], sizes)


def _transfers(look: Look) -> Iterator[Metric]:
    header, counts, work = look.header, look.counts, look.work
    ways = ["source", "destination"]
    nbytes = {
        (_ENGINE, _MEMORY): counts["stored_bytes"],
        (_MEMORY, _ENGINE): counts["loaded_bytes"],
        (_MEMORY, _DISK): header["disk_written_bytes"],
        (_DISK, _MEMORY): header["disk_read_bytes"],
    }
    yield counters("transfer_bytes", "Bytes of pages that were moved.", ways, nbytes)
    pages = {
        (_ENGINE, _MEMORY): counts["stored_pages"],
        (_MEMORY, _ENGINE): counts["loaded_pages"],
        (_MEMORY, _DISK): header["disk_written"],
        (_DISK, _MEMORY): header["disk_read"],
    }
    yield counters("transfer_pages", "Pages, or parts of pages, that were moved.", ways, pages)
    seconds = {
        (_ENGINE, _MEMORY): counts["store_ns"] / _NS,
        (_MEMORY, _ENGINE): counts["load_ns"] / _NS,
        (_MEMORY, _DISK): work.write_seconds,
        (_DISK, _MEMORY): work.read_seconds,
    }
    about = "Time that moving took; engines: added up over copies at the same time; disk: of this daemon."
    yield counters("transfer_seconds", about, ways, seconds)


def _leaving(look: Look) -> Iterator[Metric]:
    header = look.header
    pages = {
        (_MEMORY, "room"): header["evicted"],
        (_MEMORY, "flushed"): header["flushed"],
        (_MEMORY, "expired"): header["expired"],
        (_MEMORY, "given_up"): max(0, header["doomed"] - header["expired"]),
        (_DISK, "room"): header["disk_evicted"],
        (_DISK, "flushed"): header["disk_flushed"],
        (_DISK, "damaged"): header["disk_damaged"],
    }
    yield counters("evictions", "Pages that left a tier, and why.", ["tier", "reason"], pages)
    nbytes = {_MEMORY: header["evicted_bytes"], _DISK: header["disk_evicted_bytes"]}
    yield counters("evicted_bytes", "Bytes of pages that left a tier to make room.", ["tier"], nbytes)
    yield counter("lost_pages", "Pages that left memory before they could be written to disk.", header["disk_lost"])


def _reservations(look: Look) -> Iterator[Metric]:
    header = look.header
    pages = {result: header[result] for result in ("granted", "present", "pending", "refused")}
    yield counters("reservations", "Pages, or parts of pages, that engines asked room for.", ["result"], pages)
    yield counter("unpublished_pages", "Pages written in vain: given up meanwhile.", look.counts["lost_pages"])
    seconds = look.reserve_seconds
    bounds = [*(f"{bound:g}" for bound in seconds.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, seconds.cumulative()), strict=True))
    about = "From a request for room to its answer; of this daemon."
    yield HistogramMetricFamily(PREFIX + "reserve_latency_seconds", about, buckets=buckets, sum_value=seconds.sum)
