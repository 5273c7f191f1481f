"""Metrics by namespace: of the largest ones each, of the others together, so that nobody can make too many of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.metrics_core import Metric

from pagetier.daemon.metrics.family_builders import counter, gauge, gauges
from pagetier.daemon.metrics.sample import Look

OTHERS = "others"
_KINDS = ("pages", "bytes")


def space_families(look: Look, most: int) -> Iterator[Metric]:
    """Pages and bytes of the `most` namespaces with most bytes, and of all others together."""
    yield gauge("namespaces", "Namespaces that the index knows.", len(look.spaces))
    yield gauge("namespaces_limit", "Namespaces that there is room for.", look.header["spaces"])
    counts = look.idle_namespaces
    about = "Idle namespaces that were dropped as the table was full; of this daemon."
    yield counter("namespaces_dropped", about, counts.dropped)
    about = "Requests for room that were rejected as the table of namespaces was full; of this daemon."
    yield counter("namespaces_rejected", about, counts.rejected)
    ordered = sorted(look.spaces, key=lambda space: -(space["bytes"] + space["disk_bytes"]))
    for kind in _KINDS:
        numbers: dict[tuple[str, str], float] = {}
        for at, space in enumerate(ordered):
            _add(numbers, OTHERS if at >= most else space["name"], space, kind)
        about = f"{kind.capitalize()} of a namespace; on disk: in memory too or not."
        yield gauges(f"namespace_{kind}", about, ["namespace", "tier"], numbers)


def _add(numbers: dict[tuple[str, str], float], name: str, space: dict[str, Any], kind: str) -> None:
    """Two namespaces of one name, which only their digests tell apart, are added up."""
    for tier, key in (("memory", kind), ("disk", f"disk_{kind}")):
        numbers[name, tier] = numbers.get((name, tier), 0) + space[key]
