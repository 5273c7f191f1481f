"""Reads pages that are not in memory for later lookups of SGLang's scheduler, which do not wait for them."""

from __future__ import annotations

import msgspec

from pagetier.client.engines.disk_reads import DiskReads
from pagetier.client.engines.fleet_reads import FleetRead, FleetReads
from pagetier.client.engines.sglang.engine.batch_times import BatchTimes
from pagetier.client.engines.sglang.engine.settings import LinkerSettings
from pagetier.client.engines.sglang.engine.tier_counts import BegunReads
from pagetier.client.group_match import GroupMatch
from pagetier.client.load_or_compute import Decision
from pagetier.shm import clock


class Reading(msgspec.Struct, frozen=True, eq=False):
    """Reads pages where that is faster than computing them. One rank does so for all.

    Attributes:
        disk: Reads from disk.
        fleet: Asks the fleet and reads from it.
        batches: Measures how long SGLang computes.
        settings: The settings.
    """

    disk: DiskReads
    fleet: FleetReads
    batches: BatchTimes
    settings: LinkerSettings

    def begin(self, match: GroupMatch, reads: BegunReads) -> None:
        """Begins to read what a request lacks, and adds it to `reads`. It may be called again while it waits.

        Args:
            match: The match of its lookup.
            reads: What was begun for it before. Its pages on disk are judged once.
        """
        if not reads.judged and match.available_tokens > match.tokens:
            self._begin_disk(match, reads)
        if reads.judged and (reads.disk is None or reads.slower_on_disk):
            return  # what the fleet has comes after these pages
        if (reads.fleet is None or self._is_worth_another(reads.fleet)) and self.fleet.answers:
            reads.fleet = self.fleet.ask(match, 0)

    def _begin_disk(self, match: GroupMatch, reads: BegunReads) -> None:
        reads.judged, decision = True, self.disk.decide(match, match.tokens, clock.now())
        if decision in (Decision.LOAD, Decision.PROBE):
            reads.disk = self.disk.read(match, self.settings.disk_timeout)
        if decision in (Decision.COMPUTE, Decision.PROBE):
            reads.slower_on_disk = match.available_tokens - match.tokens

    def _is_worth_another(self, question: FleetRead) -> bool:
        """Returns whether a request that still waits asks again: the fleet had nothing, or did not answer, long ago."""
        return question.ended and question.hit is None and clock.now() > question.asked_at + self.settings.lease
