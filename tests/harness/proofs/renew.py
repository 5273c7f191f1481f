"""Runs the shards of proofs, some at a time, and writes the lock of each proof that held."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

from proofs.inputs import forget_the_tree
from proofs.lock import LOCKS, Lock, read_lock, recorded, seed_of, write_lock
from proofs.progress import BUILD, Progress
from proofs.proof import Proof
from proofs.shard import ROOT, SKIPPED, Outcome, Shard, run


class Renewal:
    """A run of one proof.

    Args:
        proof: The proof.
        say: Prints a line.
        locks: The folder of its lock.
        build: The folder of what an interrupted run has done.
    """

    def __init__(self, proof: Proof, say: Callable[[str], None], locks: Path = LOCKS, build: Path = BUILD) -> None:
        self._proof = proof
        self._say = say
        self._locks = locks
        self._inputs = proof.digest()
        self._seed = seed_of(self._inputs)
        self._commit = commit()
        self._progress = Progress(proof.name, self._inputs, build)
        self._all = {shard.name: shard for shard in proof.shards()}
        self.failed: list[str] = []

    def waiting(self) -> list[Shard]:
        """Returns the shards that have not held yet."""
        return [shard for name, shard in self._all.items() if name not in self._progress.shards]

    def try_one(self, shard: Shard) -> None:
        """Runs a shard and keeps its result."""
        outcome = run(shard, self._seed)
        why = why_not(outcome)
        title = f"{self._proof.name} {shard.name}"
        untried = f"{len(outcome.skipped)} skipped" if outcome.skipped else ""
        self._say(f"{'FAILED' if why else 'held':<7}{title:<60} {outcome.seconds:6.1f} s  {why or untried}")
        if why:
            self.failed.append(shard.name)
            self._say(outcome.output)
        else:
            self._progress.keep(shard.name, recorded(outcome))

    def finish(self) -> bool:
        """Writes the lock if all shards held. Returns whether they did."""
        if self.failed or self.waiting():
            return False
        forget_the_tree()
        if self._proof.digest() != self._inputs:
            self._say(f"FAILED {self._proof.name}: its inputs were changed while it ran")
            return False
        write_lock(self._proof.name, self._lock(), self._locks)
        self._progress.forget()
        return True

    def _lock(self) -> Lock:
        before = read_lock(self._proof.name, self._locks)
        shards = {name: self._progress.shards[name] for name in self._all}
        seconds = round(sum(record.seconds for record in shards.values()), 1)
        runs = before.runs if before else 0
        return Lock(self._inputs, self._commit, self._seed, runs + 1, seconds, shards)


def why_not(outcome: Outcome) -> str:
    """Returns why a shard did not hold, or "" if it did."""
    if outcome.code:
        return f"exit status {outcome.code}"
    if all(line.startswith(SKIPPED) for line in outcome.summary):
        return ", ".join(outcome.skipped) or "it printed no summary"
    return ""


def renew(proofs: Sequence[Proof], jobs: int) -> list[str]:
    """Runs proofs and writes the locks of those that hold.

    Args:
        proofs: The proofs. Shards of an interrupted run that held are not run again.
        jobs: How many shards run at a time.

    Returns:
        The names of the proofs that did not hold.
    """
    return run_all({proof.name: Renewal(proof, say) for proof in proofs}, jobs)


def run_all(renewals: Mapping[str, Renewal], jobs: int) -> list[str]:
    """Runs renewals, and returns the names of those that did not hold. An interruption starts no further shard."""
    with ThreadPoolExecutor(jobs) as pool:
        try:
            tasks = {name: _submitted(pool, renewal) for name, renewal in renewals.items()}
            return [name for name, renewal in renewals.items() if not _ended(tasks[name], renewal)]
        finally:
            pool.shutdown(cancel_futures=True)


def _submitted(pool: ThreadPoolExecutor, renewal: Renewal) -> list[Future[None]]:
    return [pool.submit(renewal.try_one, shard) for shard in renewal.waiting()]


def _ended(tasks: list[Future[None]], renewal: Renewal) -> bool:
    for task in as_completed(tasks):
        task.result()
    return renewal.finish()


def commit() -> str:
    """Returns the short name of the commit that is checked out, with "+" if files other than locks were changed."""
    changed = _git("status", "--porcelain", "--", ".", f":!{LOCKS.relative_to(ROOT)}/*.json")
    return _git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
