"""Takes the sample of all numbers for Prometheus. On the loop's thread; takes well below a millisecond."""

from __future__ import annotations

import msgspec

from pagetier.daemon.common.eviction_report import EvictionReport
from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.disk.status import DiskCounters, HintReport, PhaseProgress
from pagetier.daemon.index.idle_namespaces import IdleCounts
from pagetier.daemon.index.service import Service
from pagetier.shm._core import AttachmentCounts, IndexHeader, NamespaceRecord
from pagetier.shm.segment_files import observe_and_close
from pagetier.shm.segments import Segments


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample of all numbers. The daemon's own counters begin with the daemon, all others with the segments.

    Attributes:
        header: As Observer.header() returns it.
        counts: As Observer.counts() returns it.
        spaces: As Observer.spaces() returns it.
        attached: The number of slots in use.
        deaths: Attached processes that died without detaching.
        reserve_seconds: The latency of reservations.
        work: The counters of the disk tier.
        idle_namespaces: The counters of dropped namespaces.
        progress: The phase of the daemon.
        eviction: The order of eviction.
        hints: The counters of hints.
    """

    header: IndexHeader
    counts: AttachmentCounts
    spaces: list[NamespaceRecord]
    attached: int
    deaths: int
    reserve_seconds: Histogram
    work: DiskCounters
    idle_namespaces: IdleCounts
    progress: PhaseProgress
    eviction: EvictionReport
    hints: HintReport


class Sampler:
    """Takes samples. Raises OSError if the segments cannot be opened."""

    def __init__(self, segments: Segments, service: Service) -> None:
        self._owner = segments.owner
        self._service = service
        self._observer = observe_and_close(segments.read_only_descriptors())

    def take(self) -> Sample:
        """Takes a sample, without a walk over the index."""
        service = self._service
        return Sample(
            header=self._observer.header(),
            counts=self._observer.counts(),
            spaces=self._observer.spaces(),
            attached=len(self._owner.attachments()),
            deaths=service.deaths,
            reserve_seconds=service.reserve_seconds,
            work=service.disk.work(),
            idle_namespaces=service.idle_namespaces.counts,
            progress=service.disk.progress,
            eviction=service.evictor.report(),
            hints=service.hints.report,
        )
