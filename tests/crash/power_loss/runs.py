"""Simulates many power losses of one recording: a child opens and judges the folder that each leaves.

Run as a process: `python -m power_loss.runs STREAM FOLDER --states N --seed N` prints the results as JSON. FOLDER is
the recorded folder.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from oracle.checker import Kind, Violation
from pagetier.shm._core import KEY_BYTES
from power_loss import mutants
from power_loss.constants import Terms
from power_loss.disk_model import History
from power_loss.forked_work import Ended, in_a_child
from power_loss.losses import Way, choose, choose_names
from power_loss.promise_log import Promises
from power_loss.reopening import Expected, Found, after_a_restart, judged, keys_of, prove_here
from power_loss.workload import TERMS
from power_loss.write_stream import read_stream

MEMORY: Final = next((folder for folder in ("/dev/shm",) if Path(folder).is_dir()), None)
_LONG_S: Final = 60.0
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


class Tally(msgspec.Struct, kw_only=True):
    """The results of many power losses.

    Attributes:
        states: The number of folders by the state in which they were found.
        by_way: For each way the number of rebuilt folders, and of all.
        stored: Pages that were reported stored and not dropped, summed over all losses, like the next three.
        must: Pages that had to be found.
        exact: Pages that were found.
        damaged: Pages that were listed and not served.
    """

    seed: int
    states: dict[str, int] = {}
    by_way: dict[str, list[int]] = {}
    stored: int = 0
    must: int = 0
    exact: int = 0
    damaged: int = 0
    seconds: float = 0.0
    violations: list[str] = []

    @property
    def count(self) -> int:
        return sum(self.states.values())


class PromisedPages:
    """Expects what a workload was promised: all stored pages, if they were synced or no byte of them is lost."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._promises = Promises(history.events)

    def __call__(self, loss: Loss) -> Expected:
        promised = self._promises.at(loss.cut)
        history, cut = self._history, loss.cut
        whole = not history.unsynced(cut) or not history.changed(promised.synced, cut) or loss.way is Way.NOTHING_LOST
        return Expected(
            keys_of(promised.begun), keys_of(promised.stored) if whole else frozenset(), len(promised.stored)
        )


class AnyOfKeys:
    """Expects that any of these pages may be found, and none must."""

    def __init__(self, keys: Path) -> None:
        packed = keys.read_bytes()
        self._may = frozenset(packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES))

    def __call__(self, loss: Loss) -> Expected:
        return Expected(self._may)


class LossTrials:
    """Power losses of one recording. `room` is a folder for the files that each loss leaves."""

    def __init__(self, history: History, terms: Terms, expected: Callable[[Loss], Expected], room: Path) -> None:
        self._history = history
        self._terms = terms
        self._expected = expected
        self._room = room

    def run(self, losses: Iterable[Loss], seed: int, violations: int, seconds: float = inf) -> Tally:
        """Tries one loss after the other, until all are tried, `violations` are found or `seconds` are over."""
        began, self.tally = time.monotonic(), Tally(seed=seed)
        for loss in losses:
            self._note(loss, self._after(loss))
            if len(self.tally.violations) >= violations or time.monotonic() - began > seconds:
                break
        self.tally.seconds = round(time.monotonic() - began, 1)
        return self.tally

    def _after(self, loss: Loss) -> Found:
        chance = Random(f"{self.tally.seed} {loss.number}")
        left = self._history.left(loss.cut, choose(loss.way, chance), choose_names(loss.way, chance))
        folder = self._room / "tier"
        lay(folder, left)
        ended = in_a_child(partial(self._judge, folder, loss), _LONG_S)
        shutil.rmtree(folder)
        return msgspec.json.decode(ended.said, type=Found) if ended.said else _crashed(ended)

    def _judge(self, folder: Path, loss: Loss) -> bytes:
        for boot in range(loss.boots):
            after_a_restart(self._room / f"boot {boot}")
        if loss.number % _REAL_PROOFS:
            prove_here()
        return msgspec.json.encode(judged(folder, self._terms, self._expected(loss)))

    def _note(self, loss: Loss, found: Found) -> None:
        tally, how = self.tally, kind_of(found.how)
        tally.states[how] = tally.states.get(how, 0) + 1
        rebuilt, of = tally.by_way.get(loss.way, [0, 0])
        tally.by_way[loss.way] = [rebuilt + found.rebuilt, of + 1]
        tally.exact += found.exact
        tally.damaged += found.damaged
        expected = self._expected(loss)
        tally.stored += expected.stored
        tally.must += len(expected.must)
        tally.violations += [f"{loss.way}, cut {loss.cut}, number {loss.number}: {one}" for one in found.violations]


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


def _crashed(ended: Ended) -> Found:
    if ended.hung:
        blame = Violation(Kind.HANG, "opening and reading the tier hangs")
    else:
        blame = Violation(Kind.CRASH, ended.failed or f"killed by signal {ended.signal}")
    return Found(how="not opened", exact=0, damaged=0, violations=[blame])


def main() -> None:
    """Runs the command line. Exits with 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m power_loss.runs")
    parser.add_argument("stream", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--states", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mistake", default="", choices=list(mutants.MISTAKES))
    parser.add_argument("--way", type=Way, action="append", help="try only this way; may be given several times")
    parser.add_argument("--seconds", type=float, default=inf, help="start no further trial after this time")
    parser.add_argument("--violations", type=int, default=100)
    parser.add_argument(
        "--keys", type=Path, help="file with the keys of all pages, of a recording without a workload's marks"
    )
    parser.add_argument("--terms", type=msgspec.json.Decoder(Terms).decode, default=TERMS)
    wanted = parser.parse_args()
    mutants.make(wanted.mistake)
    history = History(read_stream(wanted.stream), wanted.folder)
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", dir=MEMORY) as room:
        expected = AnyOfKeys(wanted.keys) if wanted.keys else PromisedPages(history)
        trials = LossTrials(history, wanted.terms, expected, Path(room))
        losses = planned(history, wanted.states, wanted.seed, wanted.way or list(Way))
        tally = trials.run(losses, wanted.seed, wanted.violations, wanted.seconds)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(tally)).decode() + "\n")
    sys.exit(bool(tally.violations))


if __name__ == "__main__":
    main()
