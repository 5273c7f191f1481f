"""The lock of a proof: when it held last, for which inputs, and what its shards said."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from proofs.shard import ROOT, SKIPPED, Outcome

LOCKS: Final = ROOT / "tests" / "proofs"


class Record(Struct, frozen=True):
    """The result of a shard.

    Attributes:
        seconds: How long it took.
        summary: Its lines that the seed determines.
    """

    seconds: float
    summary: tuple[str, ...]


class Lock(Struct, frozen=True):
    """The result of a whole proof. A proof that failed has none.

    Attributes:
        inputs: The digest of what it depends on.
        commit: The commit that was checked out, with "+" if files were changed.
        seed: What its shards drew from: `seed_of` the inputs.
        runs: How often it was run and held, with any inputs.
        seconds: The sum over its shards.
        shards: The results by name.
    """

    inputs: str
    commit: str
    seed: int
    runs: int
    seconds: float
    shards: dict[str, Record]


def lock_file(name: str, folder: Path = LOCKS) -> Path:
    """Returns the path of a proof's lock."""
    return folder / f"{name}.json"


def written_after(name: str, moment: float, folder: Path = LOCKS) -> bool:
    """Returns whether the lock of a proof was written after a moment of the file system's clock."""
    file = lock_file(name, folder)
    return file.exists() and file.stat().st_mtime > moment


def read_lock(name: str, folder: Path = LOCKS) -> Lock | None:
    """Returns the lock of a proof, or None if it never held or its file cannot be read."""
    try:
        return msgspec.json.decode(lock_file(name, folder).read_bytes(), type=Lock)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def write_lock(name: str, lock: Lock, folder: Path = LOCKS) -> None:
    """Replaces the lock of a proof."""
    text = msgspec.json.format(msgspec.json.encode(lock), indent=1)
    lock_file(name, folder).write_bytes(text + b"\n")


def seed_of(inputs: str) -> int:
    """Returns the seed of all shards, which a digest of inputs determines: other inputs lead to other numbers."""
    return int.from_bytes(hashlib.sha256(inputs.encode()).digest()[:4], "big") >> 1


def relabelled(lock: Lock) -> str:
    """Returns what shows that a lock has the digest of other inputs than those that it was run with, or ""."""
    wanted = seed_of(lock.inputs)
    return "" if lock.seed == wanted else f"its seed is {lock.seed}, but its inputs have the seed {wanted}"


def orphaned_locks(names: Iterable[str], folder: Path = LOCKS) -> list[Path]:
    """Returns the locks that belong to no proof with one of these names."""
    return sorted(set(folder.glob("*.json")) - {lock_file(name, folder) for name in names})


def held(record: Record | None) -> bool:
    """Returns whether a record is the result of a shard that tried something."""
    return record is not None and any(not line.startswith(SKIPPED) for line in record.summary)


def recorded(outcome: Outcome) -> Record:
    """Returns what a lock keeps of a shard that held."""
    return Record(outcome.seconds, outcome.summary)
