"""Tests segments damaged between two daemons: exact bytes or a miss, no crash, no endless loop, and a sound end.

SWEEP=all runs over 2,000 injuries in 500 lives. The bytes of pages are not damaged: in memory they have no checksum.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import msgspec
import pytest

from seeded_random import chance
from segment_corruption.lives import Lives, lives_in

_CHUNKS, _LIVES, _EACH = (10, 51, 5) if os.environ.get("SWEEP") == "all" else (1, 9, 5)


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with lives_in(tmp_path_factory.mktemp("lives")) as made:
        yield made


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_exact_bytes_or_a_miss(lives: Lives, chunk: int, record_property: Callable[[str, object], None]) -> None:
    """About half of the lives lose a page. It may take more than the first ones until one does."""
    assert any(_loses_pages(lives) for _ in range(5)), "nothing was damaged"
    record_property("counted", {"damaged lives": _LIVES})


def _loses_pages(lives: Lives) -> bool:
    """Returns whether pages were lost in one of some lives, all of which keep their promises."""
    seed = int(chance().integers(1 << 31))
    whole, *damaged = lives.trials(seed, _LIVES, _EACH)
    assert not whole.complaint(), whole
    assert whole.seen.hits > 100 and not whole.seen.hits + whole.seen.misses < 180, "the test needs more pages"
    wrong = {trial.complaint(): trial for trial in damaged if trial.complaint()}
    assert not wrong, (seed, wrong)
    return any(trial.seen.hits < whole.seen.hits for trial in damaged)


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
