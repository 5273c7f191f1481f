"""The report's section about what pagetier loses."""

from __future__ import annotations

from collections.abc import Iterator

from race.contestants.registry import PAGETIER
from race.contests.trust.failures import FAILURES
from race.contests.trust.observation import Observation
from race.report.cells import milliseconds, ratio_of, served_text, value_of
from race.report.ratios import Comparison, Verdict, all_ratios
from race.report.reasons import reasons_for
from race.report.titles import TITLES
from race.results import Observed, Race


def losses_section(race: Race) -> Iterator[str]:
    """Yields every case and every failure in which another system was better."""
    ratios = list(all_ratios(race.lines))
    yield "## What pagetier loses"
    yield ""
    behind = sorted((one for one in ratios if one.verdict is Verdict.BEHIND), key=lambda one: one.value)
    if behind:
        yield "| what | rival | pagetier | rival | ratio |"
        yield "| -- | -- | -: | -: | -: |"
        yield from map(_loss, behind)
        yield ""
        yield "Why:"
        yield ""
        yield from reasons_for(behind)
    elif ratios:
        yield "In no case of this run is the whole interval of a ratio below 1."
    yield ""
    yield from _failures(race)
    yield ""
    if not ratios:
        return
    ahead, undecided = (sum(one.verdict is verdict for one in ratios) for verdict in (Verdict.AHEAD, Verdict.OPEN))
    yield f"Of {len(ratios)} comparisons pagetier is ahead in {ahead} and behind in {len(behind)}; in {undecided} the"
    yield "interval contains 1."
    yield ""


def _failures(race: Race) -> Iterator[str]:
    """Yields the failures in which another system served more, or as much faster. Users of their own are no failure."""
    seen = [line.observation for line in race.lines if isinstance(line, Observed) and line.observation.applies]
    for ours in (one for one in seen if one.system == PAGETIER and one.failure != "unknown_user"):
        rivals = [one for one in seen if one.failure == ours.failure and one.system != PAGETIER]
        title = f"- If {FAILURES[ours.failure].title}"
        if more := [f"{one.system} {one.served.right}" for one in rivals if _served_more(one, ours)]:
            yield f"{title}: {ours.served.right} right pages; {', '.join(more)}."
        if faster := [_longest(one) for one in rivals if _answered_faster(one, ours)]:
            yield f"{title}: the longest call took {milliseconds(ours.waited)}; {', '.join(faster)}."
        yield from (f"{title}: {text}." for one in rivals for text in _faster_calls(one, ours))


def _served_more(rival: Observation, ours: Observation) -> bool:
    return _asked(rival) == _asked(ours) and rival.served.right > ours.served.right


def _answered_faster(rival: Observation, ours: Observation) -> bool:
    """Returns whether the longest call of a rival with as many right pages was shorter."""
    same = _asked(rival) == _asked(ours) and rival.served.right >= ours.served.right
    return same and not rival.unanswered and rival.waited < ours.waited


def _longest(one: Observation) -> str:
    return f"{one.system} {milliseconds(one.waited)} ({served_text(one.served)})"


def _faster_calls(rival: Observation, ours: Observation) -> Iterator[str]:
    """Yields the calls that were slower than the same call of a rival with as many pages."""
    theirs = {call.name: call for call in rival.calls}
    for call in ours.calls:
        same = theirs.get(call.name)
        if same and same.pages >= call.pages and same.seconds < call.seconds:
            yield (
                f"{call.name} took {milliseconds(call.seconds)} ({call.pages} pages); {rival.system} "
                f"{milliseconds(same.seconds)} ({same.pages} pages), its longest call "
                f"{milliseconds(rival.waited)}"
            )


def _asked(one: Observation) -> int:
    return one.served.right + one.served.wrong + one.served.missed


def _loss(one: Comparison) -> str:
    figures = one.figures
    title = TITLES.get(figures.contest, figures.contest)
    ours, theirs = (value_of(figures, name) for name in (PAGETIER, one.rival))
    return f"| {title}: {figures.case} | {one.rival} | {ours} | {theirs} | {ratio_of(one)} |"
