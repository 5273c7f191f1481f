"""The numbers that only the daemon knows; all others are in shared memory."""

from __future__ import annotations

import msgspec

from pagetier.daemon.common.histogram import Histogram
from pagetier.daemon.common.namespaces import IdleCounts
from pagetier.daemon.status.disk_report import DiskCounters
from pagetier.daemon.status.eviction_report import EvictionReport
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.daemon.status.hint_report import HintReport
from pagetier.daemon.status.huge_page_report import HugePageReport
from pagetier.daemon.status.phase import PhaseProgress
from pagetier.daemon.status.tenant_use import TenantUse


class DaemonNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that only the daemon knows. They begin with the daemon, all others with the segments.

    Attributes:
        deaths: Attached processes that died without detaching.
        reserve_seconds: The latency of reservations.
        work: The counters of the disk tier.
        idle_namespaces: The counters of dropped namespaces.
        progress: The phase of the daemon.
        eviction: The order of eviction.
        hints: The counters of hints.
        huge_pages: How much of the segments is in huge pages.
        fleet: The state of the fleet.
        question_seconds: How long the fleet took to answer, without answers that were late.
        tenants: What each tenant may have and has; nothing without quotas.
        quota_rejections: Requests with pages that a quota refused, by its pattern.
    """

    deaths: int
    reserve_seconds: Histogram
    work: DiskCounters
    idle_namespaces: IdleCounts
    progress: PhaseProgress
    eviction: EvictionReport
    hints: HintReport
    huge_pages: HugePageReport
    fleet: FleetStatus
    question_seconds: Histogram
    tenants: tuple[TenantUse, ...]
    quota_rejections: dict[str, int]
