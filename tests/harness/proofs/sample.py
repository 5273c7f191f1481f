"""Runs some shards again and compares them with the locks: it finds locks that were written without a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Final

from msgspec import Struct

from eventually import Stopwatch
from proofs.lock import Lock, Record, relabelled, seed_of
from proofs.proof import Proof
from proofs.renew import why_not
from proofs.shard import SKIPPED, Outcome, Shard, run

MOST_S: Final = 60.0
"""A shard that took longer is in no sample."""


class Chosen(Struct, frozen=True):
    """A shard of a sample, and what its lock says."""

    proof: str
    shard: Shard
    seed: int
    record: Record


def chosen(proofs: Sequence[Proof], locks: Mapping[str, Lock], commit: str) -> list[Chosen]:
    """Returns the shards that may be sampled, in the order in which a commit's hash wants them.

    The first shard of each proof comes before the second one of any.
    """
    turns = zip_longest(*(_of_proof(proof, locks[proof.name], commit) for proof in proofs))
    return [one for turn in turns for one in sorted(filter(None, turn), key=lambda one: _rank(commit, one.proof))]


def _of_proof(proof: Proof, lock: Lock, commit: str) -> Iterator[Chosen]:
    """Yields the shards of a proof that are short enough."""
    records = {shard: lock.shards[shard.name] for shard in proof.shards() if shard.name in lock.shards}
    for shard in sorted(records, key=lambda shard: _rank(commit, f"{proof.name} {shard.name}")):
        if records[shard].seconds <= MOST_S:
            yield Chosen(proof.name, shard, seed_of(lock.inputs), records[shard])


def _rank(commit: str, name: str) -> bytes:
    return hashlib.sha256(f"{commit} {name}".encode()).digest()


def relabelled_locks(locks: Mapping[str, Lock]) -> Iterator[str]:
    """Yields a line for each lock whose digest of inputs was replaced without a run."""
    for name, lock in locks.items():
        if why := relabelled(lock):
            yield f"DIFFERS {name}: {why}"


def try_sample(wanted: Sequence[Chosen], jobs: int, limit_s: float) -> Iterator[str]:
    """Runs shards, in order, for a limited time.

    Args:
        wanted: The shards.
        jobs: How many run at a time.
        limit_s: After how many seconds the last one ends, on a machine like the one that wrote the locks: a shard that
            its lock says to end later is left out.

    Yields:
        A line for each shard that was run; that of a difference begins with "DIFFERS".
    """
    watch = Stopwatch()
    with ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(
            lambda one: _try_one(one) if watch.seconds + one.record.seconds <= limit_s else "", wanted
        ):
            if line:
                yield line


def _try_one(one: Chosen) -> str:
    outcome = run(one.shard, one.seed)
    why = difference(one.record, outcome)
    title = f"{one.proof} {one.shard.name}"
    if why:
        return f"DIFFERS {title}: {why}"
    untried = lacking(one.record, outcome)
    return f"{'untried' if untried else 'same':<7} {title:<60} {outcome.seconds:6.1f} s  {', '.join(untried)}".rstrip()


def lacking(record: Record, outcome: Outcome) -> list[str]:
    """Returns what this machine cannot try of a shard, although the one that wrote the lock did."""
    return [reason for reason in outcome.skipped if SKIPPED + reason not in record.summary]


def difference(record: Record, outcome: Outcome) -> str:
    """Returns how a shard differs from what its lock says, or "" if it does not.

    A machine that cannot try all of the shard (a tool is missing) is no difference.
    """
    if outcome.code:
        return f"{why_not(outcome)}\n{outcome.output}"
    if lacking(record, outcome):
        return ""
    lost = [f"- {line}" for line in record.summary if line not in outcome.summary]
    new = [f"+ {line}" for line in outcome.summary if line not in record.summary]
    return "\n".join([*lost, *new] and ["the lock (-) says otherwise than this run (+)", *lost, *new])
