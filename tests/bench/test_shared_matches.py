"""Tests which batches count as run beside the other process, and as alone: with given times, and real ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from shared_matches import Batches, alone, batches, beside, build, rates

MS = 1_000_000


def rows(*times: tuple[int, int]) -> Batches:
    return np.array(times, np.uint64).reshape(-1, 2)


def in_turn(begins: int, count: int, takes: int) -> Batches:
    """Returns batches without gaps."""
    return rows(*((begins + at * takes, begins + (at + 1) * takes) for at in range(count)))


def test_a_batch_within_those_of_the_other_is_beside_it() -> None:
    mine = rows((10, 20), (100, 130), (190, 210))
    assert beside(mine, in_turn(0, 20, 10)).tolist() == [[10, 20], [100, 130]]
    assert not len(alone(mine, in_turn(0, 20, 10)))


def test_a_batch_in_a_pause_of_the_other_is_alone() -> None:
    other = np.concatenate([in_turn(0, 5, 10), in_turn(5 * MS, 5, 10)])
    mine = rows((40, 60), (60, 70), (MS, 2 * MS), (5 * MS - 5, 5 * MS + 5), (6 * MS, 7 * MS))
    assert alone(mine, other).tolist() == [[60, 70], [MS, 2 * MS], [6 * MS, 7 * MS]]
    assert not len(beside(mine, other))


def test_a_batch_beside_one_that_was_interrupted_counts_as_neither() -> None:
    other = np.concatenate([in_turn(0, 5, 10), rows((50, MS)), in_turn(MS, 5, 10)])
    mine = rows((5, 15), (40, 60), (500, 600), (MS - 5, MS + 5), (MS + 15, MS + 25))
    assert beside(mine, other).tolist() == [[5, 15], [MS + 15, MS + 25]]
    assert not len(alone(mine, other))


def test_rates_are_medians_of_a_match() -> None:
    other = np.concatenate([in_turn(0, 10, 300), in_turn(5 * MS, 10, 300)])
    mine = np.concatenate([in_turn(100, 3, 200), in_turn(MS, 3, 100), in_turn(5 * MS + 100, 3, 200)])
    found = rates([mine, other], 512)
    assert (found.alone, found.beside[0]) == (100, 200)


def test_processes_that_never_ran_at_once_have_no_rates() -> None:
    with pytest.raises(ValueError, match="same time"):
        rates([in_turn(0, 5, 10), in_turn(MS, 5, 10)], 8)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("what", ["same", "other", "held"])
def test_both_processes_match(what: str, tmp_path: Path) -> None:
    for mine in batches(build(tmp_path), 8, what, 4, 0):
        assert len(mine) and (mine[:, 0] <= mine[:, 1]).all() and (mine[1:, 0] >= mine[:-1, 1]).all()
