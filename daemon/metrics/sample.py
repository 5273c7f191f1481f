"""A sample of all numbers for Prometheus: those of the daemon, and those that every observer reads."""

from __future__ import annotations

from pagetier.daemon.common.namespaces import with_pages
from pagetier.daemon.metrics.numbers import DaemonNumbers
from pagetier.daemon.stats.size_advice import SizeAdvice, read_advice
from pagetier.shm._core import AttachmentCounts, IndexHeader, NamespaceRecord, Observer, SampledLookups


class Sample(DaemonNumbers, frozen=True, kw_only=True):
    """One sample of all numbers.

    Attributes:
        header: As Observer.header() returns it.
        counts: As Observer.counts() returns it.
        attached: The number of attachments.
        spaces: The namespaces that have pages.
        lookups: What is known of lookups; None: nothing.
        advice: What they would find with other sizes; None before the first one.
    """

    header: IndexHeader
    counts: AttachmentCounts
    attached: int
    spaces: list[NamespaceRecord]
    lookups: SampledLookups | None
    advice: SizeAdvice | None


def take_sample(observer: Observer, numbers: DaemonNumbers) -> Sample:
    """Takes a sample, without a walk over the index."""
    spaces = observer.spaces()
    known = {name: getattr(numbers, name) for name in numbers.__struct_fields__}
    return Sample(
        header=observer.header(),
        counts=observer.counts(),
        attached=observer.attached(),
        spaces=with_pages(spaces),
        lookups=observer.lookups(),
        advice=read_advice(observer, spaces, numbers.eviction.policy),
        **known,
    )
