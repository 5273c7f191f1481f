"""Tests deaths and power losses during the recovery from a power loss: at every call of the opening."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from pagetier.tiers.disk import recovery
from power_loss.disk_model import History
from power_loss.losses import Way, choose, choose_names
from power_loss.promise_log import Promised, Promises
from power_loss.recording import record
from power_loss.recovery import laid
from power_loss.reopening import unsound
from power_loss.runs import Loss, LossTrials, lay, planned
from power_loss.trials import Tally, Wanted, main, try_all
from power_loss.write_stream import Event, read_stream

_MOST_TRIES: Final = 200


class UnsoundDisk(msgspec.Struct, frozen=True):
    """A disk after a power loss of which a part is unsound: the events that lead to it, and those of its recovery.

    `first` is the place in the stream from which the recovery has reported which pages there may be.
    """

    events: list[Event]
    first: int


def find_unsound_disk(stream: Path, folder: Path, wanted: Wanted) -> UnsoundDisk:
    """Finds a power loss that leaves an unsound part, and records the recovery from it."""
    history = History(read_stream(stream), folder)
    for loss in planned(history, _MOST_TRIES, wanted.seed, [Way.METAS_FIRST, Way.ONE_LOST]):
        chance = Random(f"{wanted.seed} {loss.number}")
        shutil.rmtree(folder)
        lay(folder, history.left(loss.cut, choose(loss.way, chance), choose_names(loss.way, chance)))
        if unsound(folder) and any(not recovery.shortened(folder / name) for name in unsound(folder)):
            return _recovered(folder, Promises(history.events).at(loss.cut), wanted)
    raise AssertionError("no loss left an unsound part")


def _recovered(folder: Path, promised: Promised, wanted: Wanted) -> UnsoundDisk:
    before = laid(folder)
    stream, numbers, boot = (folder.with_name(name) for name in ("second", "numbers", "boot"))
    stream.unlink(missing_ok=True)
    numbers.write_bytes(msgspec.json.encode(sorted(promised.begun)))
    record("power_loss.recovery", folder, stream, str(boot), str(numbers), wanted.mistake, wanted.terms.store)
    return UnsoundDisk([*before, *read_stream(stream)], len(before) + 1)


def second_losses(unsound_disk: UnsoundDisk, states: int, seed: int) -> Iterator[Loss]:
    """Yields second losses: deaths of the process alone, first during the opening, or power losses."""
    chance, cuts = Random(seed), range(unsound_disk.first, len(unsound_disk.events) + 1)
    ways = [way for way in Way if way is not Way.NOTHING_LOST]
    opened = next(at for at in cuts if unsound_disk.events[at].mark.startswith("opened"))
    deaths = sorted(chance.sample(cuts, len(cuts)), key=lambda cut: cut > opened)[: states // 2]
    for number, cut in enumerate(deaths):
        yield Loss(number, cut, Way.NOTHING_LOST, boots=1)
    for number in range(len(deaths), states):
        yield Loss(number, chance.choice(cuts), chance.choice(ways), boots=2)


def run(wanted: Wanted, room: Path, tally: Tally) -> None:
    """Tries second losses during the recovery from a first one. The recorded folder is overwritten."""
    folder = Path(wanted.folder)
    unsound_disk = find_unsound_disk(Path(wanted.stream), folder, wanted)
    history = History(unsound_disk.events, folder)
    losses = second_losses(unsound_disk, wanted.count, wanted.seed)
    try_all(losses, LossTrials(history, wanted, room, tally).attempt, wanted, tally)


if __name__ == "__main__":
    main(run)
