"""Tests segments damaged between two daemons: exact bytes or a miss, no crash, no endless loop, and a sound end.

SWEEP=all runs over 2,000 injuries in 500 lives. The bytes of pages are not damaged: in memory they have no checksum.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec
import pytest

from seeded_random import chance
from segment_corruption.lives import Lives, Trial, lives_in

_CHUNKS, _LIVES, _EACH = (10, 51, 5) if os.environ.get("SWEEP") == "all" else (1, 9, 5)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with lives_in(tmp_path_factory.mktemp("lives")) as made:
        yield made


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_exact_bytes_or_a_miss(lives: Lives, chunk: int, record_property: Callable[[str, object], None]) -> None:
    """About half of the lives lose a page. It may take more than the first ones until one does."""
    first, *more = map(int, chance().integers(1 << 31, size=5))
    tried, lost = _tried(lives, first)
    assert lost or any(_tried(lives, seed)[1] for seed in more), "nothing was damaged"
    record_property("counted", dict(Counter(f"injuries, {one.how}" for trial in tried for one in trial.injuries)))


def _tried(lives: Lives, seed: int) -> tuple[list[Trial], bool]:
    """Returns some damaged lives, which keep their promises, and whether pages were lost in one of them."""
    whole, *damaged = lives.trials(seed, _LIVES, _EACH)
    assert not whole.complaint(), whole
    assert whole.seen.hits > 100 and not whole.seen.hits + whole.seen.misses < 180, "the test needs more pages"
    wrong = {trial.complaint(): trial for trial in damaged if trial.complaint()}
    assert not wrong, (seed, wrong)
    return damaged, any(trial.seen.hits < whole.seen.hits for trial in damaged)


def test_the_judgement_finds_each_broken_promise(lives: Lives) -> None:
    """Proves that the judgement detects each broken promise."""
    (whole,) = lives.trials(1, 1, 0)
    for broken in (
        {"late": "an engine hangs"},
        {"code": -11},
        {"log": "Traceback (most recent call last)"},
        {"seen": msgspec.structs.replace(whole.seen, wrong=["page 1"])},
        {"seen": msgspec.structs.replace(whole.seen, findings=["frame 1 is lost"])},
        {"seen": msgspec.structs.replace(whole.seen, stored=0)},
    ):
        assert msgspec.structs.replace(whole, **broken).complaint(), broken
    assert not whole.complaint()
