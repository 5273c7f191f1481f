"""The metrics of lookups: what they found, why pages were not found, and what they would find with other sizes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from pagetier.daemon.metrics.instruments import DISK, MEMORY, REMOTE, counter, counters, gauge, gauges
from pagetier.daemon.metrics.sample import Sample
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import Absence


def lookup_families(sample: Sample) -> Iterator[Metric]:
    """Yields the metrics of what lookups found, by tier."""
    header, counts = sample.header, sample.counts
    yield counter("lookups", "Requests that were looked up, each counted once.", counts.lookups)
    pages = {
        (MEMORY, "hit"): counts.hit_pages,
        (MEMORY, "miss"): counts.miss_pages,
        (DISK, "hit"): header.disk_read,
        (DISK, "miss"): header.disk_missed,
    }
    about = "Pages that a request's first match looked up in memory; that the disk was asked to read, in time or not."
    yield counters("lookup_pages", about, ["tier", "result"], pages)
    on_disk, remote, missed = counts.disk_tokens, counts.remote_tokens, counts.missed_tokens
    tokens = {(MEMORY, "hit"): counts.memory_tokens, (MEMORY, "miss"): on_disk + remote + missed}
    if sample.work.report.standing is not Standing.NONE:
        tokens |= {(DISK, "hit"): on_disk, (DISK, "miss"): remote + missed}
    if sample.fleet.standing != "none":
        tokens |= {(REMOTE, "hit"): remote, (REMOTE, "miss"): missed}
    about = "Tokens that engines lacked: a hit in the tier that gave them; each tier: of those not found before it."
    yield counters("lookup_tokens", about, ["tier", "result"], tokens)
    about = "Tokens that a tier had, and that engines computed because loading them was slower."
    slower = (counts.memory_slower_tokens, counts.disk_slower_tokens, counts.remote_slower_tokens)
    yield counters("slower_tokens", about, ["tier"], dict(zip((MEMORY, DISK, REMOTE), slower, strict=True)))


def prediction_families(sample: Sample) -> Iterator[Metric]:
    """Yields the metrics of lookups that were sampled. There are no predictions before the first lookup."""
    known, advice = sample.lookups, sample.advice
    if known is not None:
        about = "Tokens in pages that were not found, by reason; estimated from sampled pages."
        yield counters(
            "absent_tokens", about, ["reason"], {one.name.lower(): known.absent_ever[one] for one in Absence}
        )
        yield counter("lookups_unsampled", "Lookups that the predictions leave out: a ring was full.", known.lost)
        yield gauge("lookup_sample_share", "The share of pages whose lookups are sampled.", known.share)
    if advice is None:
        return
    total = advice.total
    about = "Share of whole prompts' tokens, engines' own caches included, that an LRU cache would find in memory of"
    about += " this multiple of the arena, without a disk;"
    about += " missing before the first lookup, as the next two."
    yield gauges("predicted_hit_ratio", about, ["size"], {one.size: one.hit_ratio for one in total.memory})
    about = "Share of tokens that an LRU cache would find with a disk of this multiple of the arena."
    yield gauges("predicted_disk_hit_ratio", about, ["size"], {one.size: one.hit_ratio for one in total.disk})
    yield gauge(
        "endless_hit_ratio", "Share of tokens that a cache without a limit would find.", total.endless_hit_ratio
    )
