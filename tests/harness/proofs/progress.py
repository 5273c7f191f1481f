"""The shards of a proof that have held so far, so that an interrupted run can be continued."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from proofs.lock import Record
from proofs.shard import ROOT

BUILD: Final = ROOT / "build" / "proofs"


class Held(Struct, frozen=True):
    """A shard that held."""

    shard: str
    record: Record


class Progress:
    """What a run of a proof has done, in a file of a line for each shard.

    Args:
        name: The name of the proof.
        inputs: The digest of its inputs. With another one the run begins again.
        folder: Where the file lies.
    """

    def __init__(self, name: str, inputs: str, folder: Path = BUILD) -> None:
        self._file = folder / name / f"{inputs}.jsonl"
        if not self._file.exists():
            shutil.rmtree(self._file.parent, ignore_errors=True)
            self._file.parent.mkdir(parents=True)
            self._file.touch()
        lines = self._file.read_bytes().splitlines()
        self.shards = {one.shard: one.record for one in map(_read, lines) if one}

    def keep(self, shard: str, record: Record) -> None:
        """Adds a shard that held."""
        self.shards[shard] = record
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(Held(shard, record)) + b"\n")

    def forget(self) -> None:
        """Removes the file, so that the next run begins again."""
        shutil.rmtree(self._file.parent)


def _read(line: bytes) -> Held | None:
    """Returns what a line says, or None for one that a killed run left half-written."""
    try:
        return msgspec.json.decode(line, type=Held)
    except msgspec.DecodeError:
        return None


def begin_whole_run(folder: Path = BUILD) -> float:
    """Returns when the run of all proofs began that was interrupted, or begins now."""
    begun = folder / "all"
    if not begun.exists():
        begun.touch()
    return begun.stat().st_mtime


def end_whole_run(folder: Path = BUILD) -> None:
    """Has the next run of all proofs begin again."""
    (folder / "all").unlink()


@contextlib.contextmanager
def one_run_at_a_time(say: Callable[[str], None], folder: Path = BUILD) -> Iterator[None]:
    """Waits until no other process runs proofs in this clone: they would run the same shards in the same folders."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another process runs proofs in this clone: waiting until it ends")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
