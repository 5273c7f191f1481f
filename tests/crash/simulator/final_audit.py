"""Audits the cache at the end of a run, with no client but the auditor, before and after the daemon's last death."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from eventually import eventually
from oracle.checker import WORKER_NAMES, Kind, Losses, Violation, findings, missing
from oracle.journal import SUFFIX, Journal, Record, Reported, read_journal, read_journals
from oracle.promises import losses, seen
from oracle.samples import Caps, Sample, end_of, segments_bytes
from oracle.witness import PromptPage, Witness
from pagetier.client import Client, Keys
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import TierFlag
from pagetier.shm.protocol import Save, Saved
from simulator.chapters import Verdict, responses
from simulator.cluster import Cluster
from simulator.engine import learn
from simulator.scenes import Chain, SimulatedScene, chain_of

_COUNTED: Final = ("evicted", "disk_written", "disk_read", "disk_evicted", "disk_lost")
_DISK_S: Final = 5.0
_FROM_DISK: Final = 300
_FLEET_RESTS_S: Final = 15.0  # a page that was not complete is tried again after 8 s
_PATIENCE_S: Final = 60.0
_THERE: Final = (Reported.HIT, Reported.REACHED)
_TIERS: Final = {
    Reported.HIT: (TierFlag.MEMORY, TierFlag.MEMORY),
    Reported.REACHED: (TierFlag.BOTH, TierFlag.DISK),
    Reported.MISSED: (TierFlag.BOTH, 0),
}
"""What each report of a match says about which tiers, and in which of them the page is."""
_ANNOUNCED_S: Final = 10.0


class Auditor(msgspec.Struct, frozen=True, kw_only=True):
    """A client that looks up each page that an engine began to store, one by one, in a process of its own.

    No engine runs beside it. Its journal is one of those that it reads.
    """

    scene: SimulatedScene
    socket: Path
    journals: Path
    seed: int

    def journal(self, name: str) -> list[Record]:
        """Returns what the audit of this name recorded."""
        return read_journal(self.journals / f"{name}{SUFFIX}")

    def check_all(self, name: str) -> None:
        """Looks up all pages: loads and compares those in memory, records in the journal those that are on disk.

        A connector that begins now, after all others have died, must announce the same pages.
        """
        pages = self._pages()
        self._for_each(_check_page, name, pages)
        with Client(self.socket) as client, Journal(self.journals / f"{name}-announced{SUFFIX}") as journal:
            if not client.wait_attached(_PATIENCE_S):
                raise RuntimeError("the auditor cannot attach to the daemon")
            for key, (tiers, found) in _wrongly_announced(client, pages).items():
                journal.write(Reported.WRONG, key, note=f"a match says {found}, announced is {TierFlag(tiers)!r}")

    def load_some(self, name: str) -> None:
        """Loads and compares some of the pages on disk or in the fleet, which evicts others."""
        pages = self._pages()
        random.Random(self.seed).shuffle(pages)
        self._for_each(_load_page, name, pages[:_FROM_DISK])

    def _pages(self) -> list[Chain]:
        """Returns all pages that an engine began to store, each as a chain of its own."""
        records = read_journals(self.journals)
        begun = {key for record in records if record.reported is Reported.STORING for key in record.each()}
        pages = {}
        for chain in map(chain_of, range(self.scene.prompts)):
            for key in begun.intersection(chain.keys):
                pages[key] = Chain(Keys(chain.keys.namespace, key), chain.page_bytes)
            if len(pages) == len(begun):
                break
        return list(pages.values())

    def _for_each(self, check: Callable[[Witness, Keys], None], name: str, pages: Iterable[Chain]) -> None:
        with Client(self.socket) as client, Journal(self.journals / f"{name}{SUFFIX}") as journal:
            if not client.wait_attached(_PATIENCE_S):
                raise RuntimeError("the auditor cannot attach to the daemon")
            for page in pages:
                check(Witness(client, journal, self.seed, page.page_bytes), page.keys)


class FinalAudit:
    """The end of a run, when its engines are dead and a daemon serves.

    Args:
        cluster: The processes of the run.
        journals: The folder of the journals to judge.
        gone_before: The number of lost pages that the daemon had counted when these journals began.
    """

    def __init__(self, cluster: Cluster, journals: Path, *, gone_before: int = 0) -> None:
        self._gone_before = gone_before
        self._scene = cluster.context.scene
        self._cluster = cluster
        self._daemon = cluster.daemon
        self._processes = cluster.processes
        seed, socket = cluster.context.seed, cluster.daemon.socket
        self._auditor = Auditor(scene=self._scene, socket=socket, journals=journals, seed=seed)

    def judge(self, peak: Sample) -> Verdict:
        """Audits the cache, kills the disk worker and the daemon with an audit after each, and judges all journals."""
        tally = self._cluster.tally
        self._settle()
        since = time.monotonic_ns() if self._scene.disk and not self._scene.roomy else 0
        settled, header, gone = end_of(self._daemon), self._daemon.header(), self._gone()
        tally.pages.update({name: getattr(header, name) for name in _COUNTED})
        self._audit("before", self._auditor.check_all)
        pages = sorted(taken.entries - taken.free_entries for taken in (header, self._daemon.header()))
        later = list(self._after_deaths())
        went, may_go = self._gone() - gone, self._may_go(since)
        if self._scene.fleet:
            self._daemon.await_fleet()
        if self._scene.disk or self._scene.fleet:
            self._audit("disk", self._auditor.load_some)
        self._settle()
        caps, end, auditor = self._caps(), end_of(self._daemon), self._auditor

        def verdict() -> Verdict:
            records, first = read_journals(auditor.journals), auditor.journal("before")
            found = findings(records, may_go=may_go, samples=[peak], caps=caps, end=end) + findings([], end=settled)
            for name in later:
                found += _lost_between(first, auditor.journal(name), name, went)
            found += _not_in_the_index(first, range(pages[0], pages[1] + 1))
            return Verdict(found, responses(records), len(missing(records, may_go.since)))

        return msgspec.json.decode(self._processes.result("judge", verdict), type=Verdict)

    def stop(self) -> list[Violation]:
        """Stops the daemon by SIGTERM and returns the violations: complaints in its log, its exit code, leftovers."""
        child = self._daemon.serving
        found = [Violation(Kind.CRASH, f"a daemon wrote {line}") for line in self._daemon.complaints()]
        if child is not None:
            self._processes.signal(child, signal.SIGTERM)
            self._processes.wait(child, _PATIENCE_S)
            if child.code != 0:
                found.append(Violation(Kind.CRASH, f"a daemon that got SIGTERM ended with {child.code}"))
        return found + [Violation(Kind.LEFTOVER, name) for name in self._daemon.leftovers()]

    def _audit(self, name: str, audit: Callable[[str], None]) -> str:
        """Runs an audit in a child process and returns its name."""
        self._processes.result("auditor", lambda: audit(name))
        return name

    def _after_deaths(self) -> Iterator[str]:
        """Yields the names of the audits after deaths at rest: of the disk worker, if any, and of the daemon."""
        if self._scene.disk:
            self._lose_worker()
            yield self._audit("without-worker", self._auditor.check_all)
        self._replace_daemon()
        yield self._audit("after", self._auditor.check_all)

    def _settle(self) -> None:
        """Waits until open entries are finished or expired, slots of dead processes are free and the disk is synced."""
        eventually(lambda: not self._daemon.header().open_entries, self._scene.expiry + _PATIENCE_S)
        eventually(lambda: all(slot.name in WORKER_NAMES for slot in self._daemon.slots()), _PATIENCE_S)
        if self._scene.disk:
            self._await_all_disks()  # the pages of one that is not open yet are found by no match
            eventually(self._saved, _PATIENCE_S)
        if self._scene.fleet and not eventually(self._fleet_rests, _FLEET_RESTS_S):
            status = self._daemon.snapshot().fleet
            self._cluster.violation(Kind.GREW, f"pages of the fleet at rest: {status}")

    def _await_all_disks(self) -> None:
        def opened() -> bool:
            standings = [device.standing for device in self._daemon.snapshot().disk.devices]
            return standings == [Standing.OPEN] * self._scene.devices

        if not eventually(opened, _PATIENCE_S):
            raise RuntimeError(f"the disk tier did not open: {self._daemon.last_output()}")

    def _fleet_rests(self) -> bool:
        """Returns whether no page waits to be written or is being written, and no bounce buffer is lent."""
        status = self._daemon.snapshot().fleet
        return not (status.queued_bytes or status.lent_bytes or any(slot.pins for slot in self._daemon.slots()))

    def _saved(self) -> bool:
        saved = self._daemon.ask(Save(1))
        return isinstance(saved, Saved) and saved.synced and not saved.trouble

    def _replace_daemon(self) -> None:
        """Kills the daemon at rest with SIGKILL and starts the next one; its worker dies with it."""
        child = self._daemon.serving
        if child is not None:
            self._processes.kill(child)
            self._processes.wait(child)
        self._cluster.tally.deaths["daemon"] += 1
        self._daemon.poll()
        self._daemon.start_daemon()
        self._daemon.await_serving()
        self._settle()

    def _lose_worker(self) -> None:
        """Kills a disk worker at rest with SIGKILL; the daemon starts another, which finds all pages of its device.

        Raises:
            RuntimeError: There is no disk worker, or the disk tier does not open again.
        """
        self._cluster.evictions.sample()
        opened = self._daemon.disks_opened()
        pid = self._daemon.worker(self._cluster.rng)
        if not pid:
            raise RuntimeError(f"the daemon has no disk worker at rest: {self._daemon.last_output()}")
        os.kill(pid, signal.SIGKILL)
        self._cluster.tally.deaths["disk worker"] += 1
        self._daemon.await_disk(opened)
        self._settle()

    def _may_go(self, since: int) -> Losses:
        """Returns the losses that the counters allow, with one page for each daemon that died before counting it."""
        tally = self._cluster.tally
        gone = self._gone() - self._gone_before + tally.daemon_deaths
        allowed = Losses(at_most=0 if self._scene.roomy else gone, since=since)
        tally.pages["may be missed"] += allowed.at_most
        return allowed

    def _gone(self) -> int:
        """Returns the number of pages that left the cache for good, as far as the daemons could count them."""
        return 0 if self._scene.roomy else self._cluster.evictions.pages

    def _caps(self) -> Caps:
        shm = segments_bytes(self._daemon.observer())
        return Caps(arena=self._scene.arena, shm=shm, disk=self._scene.disk)


def _lost_between(before: Iterable[Record], after: Iterable[Record], audit: str, went: int) -> Iterator[Violation]:
    """Yields violations if more pages disappeared between two audits than the daemon counted; no store ran then."""
    gone = losses(seen(before), after)
    for loss in gone if len(gone) > went else ():
        what = f"it was found before the deaths at rest, but not in the audit {audit!r}"
        yield Violation(Kind.LOST, f"{what} ({len(gone)} pages are lost, {went} may be)", loss.promise.key)


def _not_in_the_index(records: Sequence[Record], pages: range) -> Iterator[Violation]:
    """Yields a violation if the number of pages in the index differs from the number found under their keys."""
    found, missed = (
        {key for record in records if record.reported in reports for key in record.each()}
        for reports in (_THERE, {Reported.MISSED})
    )
    if len(found) not in pages:
        indexed = f"{pages[0]} to {pages[-1]}"
        looked_up = f"{len(found)} are found under their keys, {len(missed)} other pages with a begun store are not"
        yield Violation(Kind.FRAMES, f"the index has {indexed} pages, {looked_up}")


def _check_page(witness: Witness, keys: Keys) -> None:
    since = time.monotonic_ns()
    with witness.client.match(keys) as match:
        reported = Reported.HIT if len(match) else Reported.REACHED if match.available_pages else Reported.MISSED
        witness.journal.write(reported, keys.data, since)
        if len(match):
            witness.load(match, keys)


def _wrongly_announced(client: Client, pages: Sequence[Chain]) -> dict[bytes, tuple[int, Reported]]:
    """Returns the pages that a new connector announces in other tiers than a match finds them, with both."""
    changes, tiers = LocationChanges[PromptPage](client, _PATIENCE_S, len(pages)), dict[bytes, int]()
    for page in pages:
        learn(changes, page.keys)

    def wrong() -> dict[bytes, tuple[int, Reported]]:
        for change in changes.taken():
            key = change.page.key
            tiers[key] = (tiers.get(key, 0) | change.came) & ~change.left
        found = ((page.keys.data, tiers.get(page.keys.data, 0), _reported(client, page.keys)) for page in pages)
        return {key: (here, said) for key, here, said in found if here & _TIERS[said][0] != _TIERS[said][1]}

    eventually(lambda: not wrong(), _ANNOUNCED_S)
    return wrong()


def _reported(client: Client, keys: Keys) -> Reported:
    with client.match(keys) as match:
        return Reported.HIT if len(match) else Reported.REACHED if match.available_pages else Reported.MISSED


def _load_page(witness: Witness, keys: Keys) -> None:
    with witness.client.match(keys) as match:
        if len(match) < len(keys):
            witness.load(match, keys, _DISK_S, len(keys))
