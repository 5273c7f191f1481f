"""Simulates many power losses of one recording: a child opens and judges the folder that each leaves."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from oracle.checker import Kind, Violation
from pagetier.shm._core import KEY_BYTES
from power_loss.disk_model import History
from power_loss.losses import Way, choose, choose_names
from power_loss.promise_log import Promises
from power_loss.reopening import Expected, Found, after_a_restart, judged, keys_of, prove_here
from power_loss.trials import Tally, Wanted, in_a_child, main, make_mistake, try_all
from power_loss.write_stream import read_stream

_REAL_PROOFS: Final = 50  # one of this many verifications runs in its own process, as all do outside of tests
_BOTH: Final = (Way.NOTHING_LOST, Way.ALL_LOST)


class Loss(msgspec.Struct, frozen=True):
    """A power loss just before an event of the stream.

    Attributes:
        number: The number that, with the seed, determines all random choices.
        cut: The place of the event in the stream.
        way: The way to choose which changes are lost.
        boots: How often the host has restarted between the recording and the process that opens the folder.
    """

    number: int
    cut: int
    way: Way
    boots: int = 1


class PromisedPages:
    """Expects what a workload was promised: all stored pages, if they were synced or no byte of them is lost."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._promises = Promises(history.events)

    def __call__(self, loss: Loss) -> Expected:
        promised = self._promises.at(loss.cut)
        history, cut = self._history, loss.cut
        whole = not history.unsynced(cut) or not history.changed(promised.synced, cut) or loss.way is Way.NOTHING_LOST
        return Expected(keys_of(promised.begun), keys_of(promised.stored) if whole else frozenset())


def any_of_keys(keys: Path) -> Callable[[Loss], Expected]:
    """Expects that any of these pages may be found, and none must."""
    packed = keys.read_bytes()
    expected = Expected(frozenset(packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)))
    return lambda loss: expected


class LossTrials:
    """Power losses of one recording. `room` is a folder for the files that each loss leaves.

    The tally counts the states of the folders, and the pages that had to be found, were found exact, or corrupt.
    """

    def __init__(self, history: History, wanted: Wanted, room: Path, tally: Tally) -> None:
        self._history = history
        self._wanted = wanted
        self._room = room
        self._tally = tally
        self._expected = any_of_keys(Path(wanted.keys)) if wanted.keys else PromisedPages(history)

    def attempt(self, loss: Loss) -> None:
        """Opens and judges the folder that a loss leaves."""
        chance = Random(f"{self._wanted.seed} {loss.number}")
        folder, expected = self._room / "tier", self._expected(loss)
        lay(folder, self._history.left(loss.cut, choose(loss.way, chance), choose_names(loss.way, chance)))
        ended = in_a_child(partial(self._judge, folder, loss, expected))
        shutil.rmtree(folder)
        found = msgspec.json.decode(ended.said, type=Found) if ended.said else Found(how="not opened")
        blamed = [] if ended.said else [ended.blame or Violation(Kind.CRASH, f"killed by signal {ended.signal}")]
        self._tally.blame(f"{loss.way}, cut {loss.cut}, number {loss.number}", found.violations + blamed)
        self._tally.add("states", kind_of(found.how))
        for what, number in (("must", len(expected.must)), ("exact", found.exact), ("damaged", found.damaged)):
            self._tally.add("pages", what, number)

    def _judge(self, folder: Path, loss: Loss, expected: Expected) -> bytes:
        for boot in range(loss.boots):
            after_a_restart(self._room / f"boot {boot}")
        if loss.number % _REAL_PROOFS:
            prove_here()
        return msgspec.json.encode(judged(folder, self._wanted.terms, expected))


def lay(folder: Path, left: Mapping[Path, bytes | None]) -> None:
    """Writes the files and folders that a loss left."""
    folder.mkdir()
    for path, content in sorted(left.items()):
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def kind_of(how: str) -> str:
    """Returns the tier's message without its numbers and reasons."""
    if how.startswith("rebuilt empty in"):
        return "rebuilt in part"
    if how.startswith("rebuilt empty"):
        return "rebuilt"
    return "proven sound" if "proven sound" in how else how


def planned(history: History, states: int, seed: int, ways: Sequence[Way]) -> Iterator[Loss]:
    """Yields random losses in these ways.

    If all ways are wanted, up to half of the states are cuts at syncs, with all and with none of the unsynced changes.
    """
    chance = Random(seed)
    sure = [Loss(0, cut, way) for cut in history.boundaries() for way in _BOTH] if len(ways) > 1 else []
    chance.shuffle(sure)
    sure = sure[: states // 2]
    turns = itertools.cycle(ways)
    cuts = range(1, len(history.events) + 1)
    more = [Loss(0, chance.choice(cuts), next(turns)) for _ in range(states - len(sure))]
    for number, loss in enumerate([*sure, *more]):
        yield msgspec.structs.replace(loss, number=number)


def run(wanted: Wanted, room: Path, tally: Tally) -> None:
    """Tries random losses of the recorded stream."""
    make_mistake(wanted)
    history = History(read_stream(Path(wanted.stream)), Path(wanted.folder))
    losses = planned(history, wanted.count, wanted.seed, [wanted.way] if wanted.way else list(Way))
    try_all(losses, LossTrials(history, wanted, room, tally).attempt, wanted, tally)


if __name__ == "__main__":
    main(run)
