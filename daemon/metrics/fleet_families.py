"""The metrics of the fleet."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from pagetier.daemon.common.fleet_status import FleetStatus
from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.metrics.instruments import counter, counters, gauge, gauges, histogram

_STANDINGS = ("none", "starting", "open", "down")
_RESULTS = ("found", "absent", "late", "refused")
_WAYS = ("read", "unread", "written", "present", "gone", "dropped", "failed", "damaged", "foreign")


def fleet_families(fleet: FleetStatus, question_seconds: Histogram) -> Iterator[Metric]:
    """Yields the metrics of the fleet."""
    standings = {standing: float(fleet.standing == standing) for standing in _STANDINGS}
    yield gauges("remote_standing", "The state of the fleet: 1 for one of these.", ["standing"], standings)
    yield gauge("remote_breaker_open", "1 while the fleet does not answer and is not asked.", fleet.breaker_open)
    yield counter("remote_breaker_openings", "How often the circuit breaker opened; of this daemon.", fleet.openings)
    results = {result: getattr(fleet, result) for result in _RESULTS}
    yield counters("remote_questions", "Questions to the fleet; of this daemon.", ["result"], results)
    about = "From a question to its answer, without late ones; of this daemon."
    yield histogram("remote_question_latency_seconds", about, question_seconds)
    pages = {way: getattr(fleet, way) for way in _WAYS}
    yield counters("remote_pages", "Pages by what became of them; of this daemon.", ["way"], pages)
    nbytes = {"read": fleet.read_bytes, "written": fleet.written_bytes, "dropped": fleet.dropped_bytes}
    yield counters("remote_bytes", "Bytes of pages that were moved or dropped; of this daemon.", ["way"], nbytes)
    yield gauge("remote_queue_bytes", "Bytes that wait to be written to the fleet.", fleet.queued_bytes)
    yield gauge("remote_lent_bytes", "Bytes of the worker's buffers that are in use.", fleet.lent_bytes)
    yield counter("remote_worker_restarts", "Restarts of the fleet's worker.", fleet.restarts)
