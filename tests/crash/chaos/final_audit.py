"""Audits the cache at the end of a round, with no client but the auditor, before and after the daemon's last death."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from chaos.audit import Auditor, Evidence, Verdict, judge
from chaos.child_processes import ChildProcesses
from chaos.daemons import ChaosDaemon
from chaos.eviction_accounting import EvictionAccounting
from chaos.round_counts import Tally
from chaos.scenario import EXPIRY_S, Scene
from oracle.checker import WORKER_NAME, Kind, Losses, Violation
from oracle.samples import Caps, Sample, end_of, segments_bytes
from pagetier.shm._core import AttachmentRecord
from pagetier.shm.protocol import Save, Saved
from running_daemon import eventually

COUNTED: Final = ("evicted", "disk_written", "disk_read", "disk_evicted", "disk_lost")
"""The counters of the daemon that the report lists."""

_PATIENCE_S: Final = 60.0
_TICK_S: Final = 0.003


class FinalAudit:
    """The end of a round, when its engines are dead and a daemon serves.

    gone_before is the number of lost pages that the daemon had counted when the journals of the round began.
    """

    def __init__(
        self,
        scene: Scene,
        daemon: ChaosDaemon,
        processes: ChildProcesses,
        evictions: EvictionAccounting,
        journals: Path,
        seed: int,
        *,
        gone_before: int = 0,
    ) -> None:
        self._gone_before = gone_before
        self._scene = scene
        self._daemon = daemon
        self._processes = processes
        self._evictions = evictions
        self._journals = journals
        self._seed = seed

    def judge(self, tally: Tally, samples: Sequence[Sample]) -> Verdict:
        """Audits the cache, kills the disk worker and the daemon with an audit after each, and returns the verdict.

        The verdict covers all journals of the round.

        Returns:
            All broken promises, and the counts of responses.
        """
        self._settle()
        since = time.monotonic_ns() if self._scene.disk and not self._scene.roomy else 0
        settled, header, gone = end_of(self._daemon), self._daemon.header(), self._gone()
        tally.pages.update({name: getattr(header, name) for name in COUNTED})
        before = self._audit("before", Auditor.check_all)
        pages = sorted(taken.entries - taken.free_entries for taken in (header, self._daemon.header()))
        later = list(self._after_deaths(tally))
        went, may_go = self._gone() - gone, self._may_go(since, tally)
        if self._scene.disk:
            self._audit("disk", Auditor.load_some)
        self._settle()
        evidence = Evidence(
            may_go=may_go,
            before=before,
            later=later,
            went=went,
            pages=range(pages[0], pages[1] + 1),
            settled=settled,
            end=end_of(self._daemon),
            caps=self._caps(),
            samples=samples,
        )
        return self._judged(evidence)

    def _after_deaths(self, tally: Tally) -> Iterator[Path]:
        """Yields the journals of the audits after deaths at rest: of the disk worker, if any, and of the daemon."""
        if self._scene.disk:
            self._lose_worker()
            tally.deaths["disk worker"] += 1
            yield self._audit("without-worker", Auditor.check_all)
        self._replace()
        tally.deaths["daemon"] += 1
        yield self._audit("after", Auditor.check_all)

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

    def _settle(self) -> None:
        """Waits until open entries are finished or expired, slots of dead processes are free and the disk is synced."""
        eventually(lambda: not self._daemon.header().open_entries, EXPIRY_S + 2.0)
        eventually(lambda: not self._other_slots(), 2.0)
        if self._scene.disk:
            eventually(self._saved, _PATIENCE_S)

    def _other_slots(self) -> list[AttachmentRecord]:
        return [slot for slot in self._daemon.slots() if slot.name != WORKER_NAME]

    def _saved(self) -> bool:
        with self._daemon._observing() as (link, _):
            saved = link.ask(Save(1), _PATIENCE_S)
        time.sleep(_TICK_S)
        return isinstance(saved, Saved) and saved.synced and not saved.trouble

    def _replace(self) -> None:
        """Kills the daemon at rest with SIGKILL and starts the next one; its worker dies with it."""
        child = self._daemon.serving
        if child is not None:
            self._processes.kill(child)
            self._processes.wait(child)
        self._daemon.poll()
        self._daemon.start_daemon()
        await_daemon(self._daemon, self._processes)
        self._settle()

    def _lose_worker(self) -> None:
        """Kills the disk worker at rest with SIGKILL; the daemon starts another, which finds all pages on disk.

        Raises:
            RuntimeError: There is no disk worker, or the disk tier does not open again.
        """
        self._evictions.sample()
        opened = self._daemon.disks_opened()
        pid = self._daemon.worker()
        if not pid:
            raise RuntimeError(f"the daemon has no disk worker at rest: {self._daemon.last_output()}")
        os.kill(pid, signal.SIGKILL)
        if not eventually(lambda: self._daemon.disks_opened() > opened, _PATIENCE_S):
            raise RuntimeError(f"the disk tier did not open again: {self._daemon.last_output()}")
        self._settle()

    def _may_go(self, since: int, tally: Tally) -> Losses:
        """Returns the losses that the counters allow, with one page for each daemon that died before counting it."""
        gone = self._gone() - self._gone_before + tally.daemon_deaths
        losses = Losses(at_most=0 if self._scene.roomy else gone, since=since)
        tally.pages["may be missed"] += losses.at_most
        return losses

    def _gone(self) -> int:
        """Returns the number of pages that left the cache for good, as far as the daemons could count them."""
        return 0 if self._scene.roomy else self._evictions.pages

    def _caps(self) -> Caps:
        shm = segments_bytes(self._daemon.observer())
        return Caps(arena=self._scene.arena, shm=shm, disk=self._scene.disk)

    def _audit(self, name: str, audit: Callable[[Auditor], None]) -> Path:
        """Runs an audit in a child process and returns its journal, which is one of the round's."""
        journal = self._journals / f"{name}.journal"
        auditor = Auditor(
            scene=self._scene, socket=self._daemon.socket, journals=self._journals, journal=journal, seed=self._seed
        )
        self._in_child("auditor", lambda: audit(auditor))
        return journal

    def _judged(self, evidence: Evidence) -> Verdict:
        """Returns the verdict, computed in a child: reading journals uses memory that later children would inherit."""
        path = self._journals / "verdict"
        self._in_child("judge", lambda: path.write_bytes(msgspec.json.encode(judge(self._journals, evidence))))
        return msgspec.json.decode(path.read_bytes(), type=Verdict)

    def _in_child(self, role: str, action: Callable[[], object]) -> None:
        """Runs an action in a child process. Raises RuntimeError if the child does not end with 0."""
        child = self._processes.fork(role, action)
        self._processes.wait(child, 4 * _PATIENCE_S)
        if child.code != 0:
            raise RuntimeError(f"the {role} ended with {child.code}: {self._processes.last_output(child)}")


def await_disk(daemon: ChaosDaemon) -> None:
    """Waits until the disk tier of the first daemon is open. Raises RuntimeError if it does not open."""
    if not eventually(lambda: daemon.disks_opened() > 0, _PATIENCE_S):
        raise RuntimeError(f"the disk tier did not open: {daemon.last_output()}")


def await_daemon(daemon: ChaosDaemon, processes: ChildProcesses) -> None:
    """Waits until a daemon serves. Raises RuntimeError if none does."""
    ends = time.monotonic() + _PATIENCE_S
    while not daemon.poll():
        if time.monotonic() > ends or not daemon.children:
            raise RuntimeError(f"no daemon became ready: {daemon.last_output()}")
        processes.reap()
        time.sleep(_TICK_S)
