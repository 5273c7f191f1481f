"""The goals that the race has, and whether a run meets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from race.contestants.registry import LMCACHE, NATIVE
from race.report.ratios import Comparison, Verdict, all_ratios
from race.results import Line


class Goal(msgspec.Struct, frozen=True):
    """A goal: pagetier is not worse than a rival in all cases whose names have these words.

    Attributes:
        sentence: What the report says.
        contest: The contest of the cases.
        words: Words that the name of a case has.
        rival: The rival.
    """

    sentence: str
    contest: str
    words: tuple[str, ...]
    rival: str


GOALS = (
    Goal("from memory, the first token is ahead of native at every length", "serving", ("from memory",), NATIVE),
    Goal("with nothing cached, a token takes at most native's CPU time", "serving", ("CPU time of a token",), NATIVE),
    Goal("in a convoy, the p95 of the first token is at most native's", "serving", ("convoy", "p95"), NATIVE),
    Goal("a lookup from block hashes is at most native's", "lookup", ("block hashes",), NATIVE),
    Goal("a lookup from tokens is ahead of LMCache", "lookup", ("from tokens",), LMCACHE),
    Goal("copies are ahead of LMCache", "copies", ("pages of",), LMCACHE),
    Goal("the disk is ahead of LMCache", "disk", ("",), LMCACHE),
)


def judged(lines: Sequence[Line]) -> Iterator[tuple[Goal, str]]:
    """Yields each goal that was measured with "met", "missed" or "undecided", and the cases that decide it."""
    ratios = list(all_ratios(lines))
    for goal in GOALS:
        if cases := [one for one in ratios if _belongs(one, goal)]:
            yield goal, _judge(cases)


def _belongs(one: Comparison, goal: Goal) -> bool:
    figures = one.figures
    return (figures.contest, one.rival) == (goal.contest, goal.rival) and all(
        word in figures.case for word in goal.words
    )


def _judge(cases: Sequence[Comparison]) -> str:
    behind = [one for one in cases if one.verdict is Verdict.BEHIND]
    if behind:
        return "**missed**: " + "; ".join(f"{one.figures.case} {one.value:.2g} x" for one in behind)
    undecided = [one for one in cases if one.verdict is Verdict.OPEN]
    if undecided:
        return "undecided: " + "; ".join(f"{one.figures.case} {one.low:.2g} to {one.high:.2g} x" for one in undecided)
    return f"met in all {len(cases)} cases"
