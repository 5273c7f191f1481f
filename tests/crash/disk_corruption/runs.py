"""Runs many damages; children use each damaged tier until one of them closes it without an error."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from disk_corruption.corruptions import Damage, Harm, IntactFile
from disk_corruption.file_anatomy import PARTS, Anatomy, Part
from disk_corruption.verdicts import Moment, Seen, lived
from disk_stores import StoreKind
from file_changes import write_at
from oracle.checker import Kind, Violation
from power_loss.trials import Tally, Wanted, in_a_child, main, make_mistake, try_all
from power_loss.workload import RecordedTier, Terms

TERMS: Final = Terms(cap=3 << 20, environments=1)
SMALLER: Final = Terms(cap=2 << 20, environments=1)  # pages that no longer fit are dropped, also damaged ones
DATA: Final = Path("0/data.mdb")
FRAMES: Final = Path("0/frames.0")
_LIVES: Final = 4


class Runs:
    """A series of damages. `room` is a folder for a tier and its damaged copies.

    The tally counts how many workers were needed until one closed the tier without an error ("lives"), in which state
    that worker found it ("found"), what ended the others ("deaths"), damaged parts, and pages; and what the seed chose
    ("chosen").
    """

    def __init__(self, wanted: Wanted, room: Path, tally: Tally) -> None:
        self._seed = wanted.seed
        self._store = wanted.terms.store
        self._room = room
        self._folder = room / "tier"
        self._whole = room / "whole"
        self._tally = tally
        older = in_a_child(self._made)
        assert older.said, older.blame
        data = (self._whole / DATA).read_bytes()
        length = int.from_bytes(older.said[:8], "little")
        self._files = {DATA: IntactFile(data, older.said[8 : 8 + length], Anatomy(data))}
        if self._store != "lmdb":
            self._files[FRAMES] = IntactFile((self._whole / FRAMES).read_bytes(), older.said[8 + length :])

    def _made(self) -> bytes:
        """Creates a used tier, and returns the length and an earlier content of LMDB's file, then that of frames."""
        recorded = RecordedTier(self._whole, store=self._store)
        recorded.open(TERMS)
        recorded.store(40)
        recorded.fill()
        recorded.turn_over(3)
        recorded.sync()
        data = (self._whole / DATA).read_bytes()
        older = len(data).to_bytes(8, "little") + data
        older += (self._whole / FRAMES).read_bytes() if self._store != "lmdb" else b""
        recorded.turn_over(6)
        recorded.close()
        return older

    def attempt(self, damage: Damage) -> None:
        """Damages the tier, and has workers use it."""
        chance = Random(f"{self._seed} {damage.number}")
        moment = chance.choice(list(Moment))
        terms = chance.choice([TERMS, TERMS, SMALLER])
        self._tally.add("chosen", moment)
        self._tally.add("chosen", "with a smaller limit", int(terms is SMALLER))
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder)
        name = FRAMES if damage.part is Part.SLOT and damage.harm is not Harm.COUNT else DATA
        harm = partial(write_at, self._folder / name, 0, self._files[name].harmed(damage, chance))
        if moment is not Moment.OPEN:
            harm()
        if moment is Moment.DOWN:
            self._change_state(clean=False)
        self._live_on(damage, moment, msgspec.structs.replace(terms, store=self._store), harm)

    def _live_on(self, damage: Damage, moment: Moment, terms: Terms, harm: Callable[[], None]) -> None:
        """Runs one worker after the other. After a death by a signal the next one verifies the tier."""
        smaller = ", with a smaller limit" if terms.cap == SMALLER.cap else ""
        what = f"{damage.part}: {damage.harm}, {moment}{smaller}, number {damage.number}"
        for life in range(1, _LIVES + 1):
            ended = in_a_child(partial(lived, self._folder, terms, moment, harm, self._room / "boot"))
            seen = msgspec.json.decode(ended.said, type=Seen) if ended.said else Seen(ended="died")
            self._tally.blame(what, [*seen.violations, *filter(None, [ended.blame])])
            if not seen.ended:
                return self._count(damage, life, seen)
            if ended.said or ended.signal:
                self._tally.add("deaths", seen.ended.partition("(")[2][:60] or f"signal {ended.signal}")
            moment = Moment.CLOSED if moment is Moment.OPEN else moment
            if ended.signal:
                self._change_state(clean=False, boot="distrusted")
        self._tally.blame(what, [Violation(Kind.HANG, f"{_LIVES} workers died of the damage")])
        return None

    def _count(self, damage: Damage, life: int, seen: Seen) -> None:
        how = "rebuilt" if seen.how.startswith("rebuilt") else "proven" if "proven" in seen.how else seen.how
        for table, name in (("lives", str(life)), ("found", how), ("parts", damage.part)):
            self._tally.add(table, name)
        self._tally.add("pages", "damaged", seen.damaged)
        self._tally.add("pages", "exact", seen.exact)

    def _change_state(self, **fields: object) -> None:
        state = self._folder / "state"
        state.write_text(json.dumps(json.loads(state.read_bytes()) | fields))


def planned(count: int, store: StoreKind) -> Iterator[Damage]:
    """Yields damages of all kinds on pages of all kinds that a store has, in turn."""
    kinds = itertools.cycle(itertools.product(Harm, PARTS[store]))
    for number, (harm, part) in enumerate(itertools.islice(kinds, count)):
        yield Damage(number, part, harm)


def run(wanted: Wanted, room: Path, tally: Tally) -> None:
    """Tries damages of all kinds."""
    make_mistake(wanted)
    try_all(planned(wanted.count, wanted.terms.store), Runs(wanted, room, tally).attempt, wanted, tally)


if __name__ == "__main__":
    main(run)
