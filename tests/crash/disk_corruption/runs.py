"""Runs many damages; children use each damaged tier until one of them closes it without an error.

Run as a process: `python -m disk_corruption.runs --count N --seed N` prints the results as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from disk_corruption.corruptions import Damage, Harm, IntactFile
from disk_corruption.file_anatomy import Part
from disk_corruption.verdicts import Moment, Seen, lived
from oracle.checker import Kind, Violation
from power_loss import mutants
from power_loss.constants import Terms
from power_loss.forked_work import Ended, in_a_child
from power_loss.workload import RecordedTier

TERMS: Final = Terms(cap=3 << 20, environments=1)
SMALLER: Final = Terms(cap=2 << 20, environments=1)  # pages that no longer fit are dropped, also damaged ones
_MEMORY: Final = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)
_LONG_S: Final = 30.0
_LIVES: Final = 4


class Tally(msgspec.Struct, kw_only=True):
    """The results of many damages.

    Attributes:
        lives: How often how many workers were needed until one closed the tier without an error.
        found: The states in which that worker found the tier.
        deaths: The signals and TierErrors that ended workers.
        damaged: The number of pages that were counted as corrupt.
    """

    seed: int
    count: int = 0
    lives: dict[str, int] = {}
    found: dict[str, int] = {}
    deaths: dict[str, int] = {}
    parts: dict[str, int] = {}
    damaged: int = 0
    exact: int = 0
    seconds: float = 0.0
    violations: list[str] = []


class Runs:
    """A series of damages. `room` is a folder for a tier and its damaged copies."""

    def __init__(self, room: Path, seed: int) -> None:
        self._room = room
        self._folder = room / "tier"
        self._whole = room / "whole"
        self.tally = Tally(seed=seed)
        older = in_a_child(self._made, _LONG_S)
        assert older.said, older.failed
        self._intact = IntactFile(self._data(self._whole).read_bytes(), older.said)

    def _made(self) -> bytes:
        """Creates a used tier, and returns an earlier content of its file."""
        recorded = RecordedTier(self._whole)
        recorded.open(TERMS)
        recorded.store(40)
        recorded.fill()
        recorded.turn_over(3)
        recorded.sync()
        older = self._data(self._whole).read_bytes()
        recorded.turn_over(6)
        recorded.close()
        return older

    def _data(self, folder: Path) -> Path:
        return folder / "0" / "data.mdb"

    def run(self, damages: Iterator[Damage], violations: int, seconds: float = inf) -> Tally:
        """Tries one damage after the other, until all are tried, `violations` are found or `seconds` are over."""
        began = time.monotonic()
        for damage in damages:
            self._try(damage)
            if len(self.tally.violations) >= violations or time.monotonic() - began > seconds:
                break
        self.tally.seconds = round(time.monotonic() - began, 1)
        return self.tally

    def _try(self, damage: Damage) -> None:
        chance = Random(f"{self.tally.seed} {damage.number}")
        moment = chance.choice(list(Moment))
        terms = chance.choice([TERMS, TERMS, SMALLER])
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder)
        harmed = self._intact.harmed(damage, chance)
        if moment is not Moment.OPEN:
            self._harm(harmed)
        if moment is Moment.DOWN:
            self._change_state(clean=False)
        self._live_on(damage, moment, terms, harmed)

    def _live_on(self, damage: Damage, moment: Moment, terms: Terms, harmed: bytes) -> None:
        """Runs one worker after the other. After a death by a signal the next one verifies the tier."""
        smaller = ", with a smaller limit" if terms is SMALLER else ""
        what = f"{damage.part}: {damage.harm}, {moment}{smaller}, number {damage.number}"
        for life in range(1, _LIVES + 1):
            ended = in_a_child(
                partial(lived, self._folder, terms, moment, partial(self._harm, harmed), self._room / "boot"), _LONG_S
            )
            self._note(what, ended)
            seen = msgspec.json.decode(ended.said, type=Seen) if ended.said else Seen(ended="died")
            self.tally.violations += [f"{what}: {one}" for one in seen.violations]
            if not seen.ended:
                return self._count(damage, life, seen)
            moment = Moment.CLOSED if moment is Moment.OPEN else moment
            if ended.signal:
                self._change_state(clean=False, boot="distrusted")
        self.tally.violations.append(f"{what}: {Violation(Kind.HANG, f'{_LIVES} workers died of the damage')}")
        return None

    def _note(self, what: str, ended: Ended) -> None:
        if ended.hung or ended.failed:
            blame = Violation(Kind.HANG, "the worker hangs") if ended.hung else Violation(Kind.CRASH, ended.failed)
            self.tally.violations.append(f"{what}: {blame}")
        why = f"signal {ended.signal}" if ended.signal else ""
        if ended.said:
            why = msgspec.json.decode(ended.said, type=Seen).ended.partition("(")[2][:60]
        if why:
            self.tally.deaths[why] = self.tally.deaths.get(why, 0) + 1

    def _count(self, damage: Damage, life: int, seen: Seen) -> None:
        tally = self.tally
        tally.count += 1
        tally.damaged += seen.damaged
        tally.exact += seen.exact
        how = "rebuilt" if seen.how.startswith("rebuilt") else "proven" if "proven" in seen.how else seen.how
        for counts, name in ((tally.lives, str(life)), (tally.found, how), (tally.parts, damage.part)):
            counts[name] = counts.get(name, 0) + 1

    def _harm(self, harmed: bytes) -> None:
        with self._data(self._folder).open("r+b") as file:
            file.write(harmed)

    def _change_state(self, **fields: object) -> None:
        state = self._folder / "state"
        state.write_text(json.dumps(json.loads(state.read_bytes()) | fields))


def planned(count: int) -> Iterator[Damage]:
    """Yields damages of all kinds on pages of all kinds, in turn."""
    kinds = itertools.cycle(itertools.product(Harm, Part))
    for number, (harm, part) in enumerate(itertools.islice(kinds, count)):
        yield Damage(number, part, harm)


def main() -> None:
    """Runs the command line. Exits with 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m disk_corruption.runs")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=inf, help="start no further trial after this time")
    parser.add_argument("--violations", type=int, default=100)
    parser.add_argument("--mistake", default="", choices=list(mutants.MISTAKES))
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=_MEMORY) as room:
        mutants.make(wanted.mistake)
        tally = Runs(Path(room), wanted.seed).run(planned(wanted.count), wanted.violations, wanted.seconds)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(tally)).decode() + "\n")
    sys.exit(bool(tally.violations))


if __name__ == "__main__":
    main()
