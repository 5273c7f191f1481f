"""Tests the order in which the benchmarks of vLLM run the engines that they compare."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest

from disk_setup import Scene
from serving.compare import EVERYONE, Contest
from serving.engine import Engine

CALLS = 1200


@pytest.mark.parametrize("cases", [1, 2, 3, 4, 6])
def test_no_engine_is_always_the_first_in_a_case(cases: int) -> None:
    """A benchmark runs its cases one after the other, and so a case has each `cases`th order."""
    contest = Contest(dict.fromkeys(EVERYONE, cast(Engine, None)), cast(Scene, None))
    firsts = [contest.in_turn()[0][0] for _ in range(CALLS)]
    for case in range(cases):
        counted = Counter(firsts[case::cases])
        share = CALLS / cases / len(EVERYONE)
        assert all(0.6 * share < counted[name] < 1.4 * share for name in EVERYONE), f"case {case}: {counted}"
