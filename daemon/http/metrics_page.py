"""The page that Prometheus scrapes. Imported at the first scrape."""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from pagetier.daemon.http.http_connection import Response
from pagetier.daemon.metrics.families import families
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.daemon.metrics.sample import Sample, take_sample
from pagetier.shm._core import Observer


class _Counters:
    """Gives Prometheus one sample."""

    def __init__(self, sample: Sample, most_spaces: int) -> None:
        self._sample = sample
        self._most_spaces = most_spaces

    def collect(self) -> Iterator[Metric]:
        """Returns all families of the sample."""
        return families(self._sample, self._most_spaces)

    def describe(self) -> Iterator[Metric]:
        """Returns nothing: no other collector uses these names."""
        return iter(())


def metrics_page(observer: Observer, numbers: DaemonNumbers, accept: str, most_spaces: int) -> Response:
    """Returns the metrics, with those of the daemon's process, in the format of an Accept header."""
    encode, kind = choose_encoder(accept)
    registry = CollectorRegistry()
    registry.register(_Counters(take_sample(observer, numbers), most_spaces))
    ProcessCollector(registry=registry, pid=os.getppid)
    return Response(encode(registry), kind=kind)
