"""Writes docs/race.md from the results of a race. What pagetier loses comes first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from median_interval import median_interval
from race.contestants.registry import MAKERS, PAGETIER
from race.contests.trust.failures import FAILURES
from race.contests.trust.observation import Observation
from race.engine_process import Served
from race.report.goals import judged
from race.report.ratios import Comparison, Verdict, all_ratios, compare
from race.results import Absent, Figures, Form, Observed, Race, contest_of

TITLES = {
    "lookup": "Is it cached?",
    "copies": "Store and load",
    "disk": "Disk",
    "serving": "Serving with vLLM on the CPU",
    "sharing": "Four engines on one host",
}
ABOUT = {
    "lookup": "A prompt of 131,072 tokens, from the call to the release of all that was pinned. "
    "Beginning with tokens, hashing them is included; vLLM's block hashes are there anyway.",
    "copies": "Bandwidth over that of one memcpy on one thread in the same process just before; four pages a call.",
    "disk": "Bandwidth over that of O_DIRECT on the same file system in the same round; every write is synced.",
    "serving": "A small model with random weights. Engines take turns with the same prompts.",
    "sharing": "Four engines get the requests of a trace in turn, whatever they have cached. All systems have the same "
    "memory in total; native offloading divides it among the engines. The trace is replayed once.",
}


_FORMS = {Form.QUICK: "the short form, `QUICK=1`", Form.WHOLE: "the whole race"}


def document(race: Race) -> str:
    """Returns docs/race.md."""
    parts = [*_head(race), *_losses(race), *_goals(race), *_trust(race)]
    for contest, title in TITLES.items():
        parts += _contest(race, contest, title)
    parts += [*_absent(race), *_how(race)]
    return "\n".join(parts) + "\n"


def _head(race: Race) -> Iterator[str]:
    yield "# The race"
    yield ""
    yield "pagetier beside what people would choose instead, on one machine, with the same work, in alternating"
    yield "rounds of one run. `make race` writes this page, the pictures and `bench/results/race.json`."
    yield ""
    yield f"- Machine: {race.machine}"
    yield f"- Began: {race.began}; {_FORMS[race.form]}"
    load = ", ".join(f"{one:.1f}" for one in race.load)
    yield f"- Load average over one minute at the beginning and at the end: {load}"
    for name, version in race.versions.items():
        yield f"- {name}: {version}"
    yield ""
    yield "Each number is the median of the rounds, in brackets its 95 % interval. A ratio is above 1 where pagetier"
    yield "is better; it is the median of the rounds' ratios. With fewer than six rounds an interval holds less than"
    yield "95 %. The configurations and the pages that recommend them are in"
    yield "[bench/race/configurations.md](../bench/race/configurations.md)."
    yield ""


def _losses(race: Race) -> Iterator[str]:
    ratios = list(all_ratios(race.lines))
    yield "## What pagetier loses"
    yield ""
    behind = sorted((one for one in ratios if one.verdict is Verdict.BEHIND), key=lambda one: one.value)
    if behind:
        yield "| what | rival | pagetier | rival | ratio |"
        yield "| -- | -- | -: | -: | -: |"
        yield from map(_loss, behind)
    elif ratios:
        yield "In no case of this run is the whole interval of a ratio below 1."
    yield ""
    yield from _served_less(race)
    if not ratios:
        return
    ahead, undecided = (sum(one.verdict is verdict for one in ratios) for verdict in (Verdict.AHEAD, Verdict.OPEN))
    yield f"Of {len(ratios)} comparisons pagetier is ahead in {ahead} and behind in {len(behind)}; in {undecided} the"
    yield "interval contains 1."
    yield ""


def _served_less(race: Race) -> Iterator[str]:
    """Yields the failures after which another system served more right pages. Users of their own are no failure."""
    seen = [line.observation for line in race.lines if isinstance(line, Observed)]
    for ours in (one for one in seen if one.system == PAGETIER and one.failure != "unknown_user"):
        same = [one for one in seen if one.failure == ours.failure and _asked(one) == _asked(ours)]
        more = [f"{one.system} {one.served.right}" for one in same if one.served.right > ours.served.right]
        if more:
            yield f"- If {FAILURES[ours.failure].title}: {ours.served.right} right pages; {', '.join(more)}."
    yield ""


def _asked(one: Observation) -> int:
    return one.served.right + one.served.wrong + one.served.missed


def _loss(one: Comparison) -> str:
    figures = one.figures
    title = TITLES.get(figures.contest, figures.contest)
    ours, theirs = (_value(figures, name) for name in (PAGETIER, one.rival))
    return f"| {title}: {figures.case} | {one.rival} | {ours} | {theirs} | {_ratio(one)} |"


def _goals(race: Race) -> Iterator[str]:
    found = list(judged(race.lines))
    if not found:
        return
    yield "## Goals"
    yield ""
    yield "A goal is met if the whole interval of every case is above 1, missed if that of any case is below 1."
    yield ""
    yield from (f"- {goal.sentence}: {verdict}." for goal, verdict in found)
    yield ""


def _contest(race: Race, contest: str, title: str) -> Iterator[str]:
    figures = [line for line in race.lines if isinstance(line, Figures) and line.contest == contest]
    if not figures:
        return
    yield f"## {title}"
    yield ""
    yield ABOUT[contest]
    yield ""
    yield f"![{title}](race-{contest}.svg)"
    yield ""
    for table in _tables(figures):
        yield from _table(table)


def _tables(figures: Sequence[Figures]) -> Iterator[list[Figures]]:
    """Yields the cases that the same systems ran."""
    for systems in dict.fromkeys(frozenset(one.rounds) for one in figures):
        yield [one for one in figures if one.rounds.keys() == systems]


def _table(figures: Sequence[Figures]) -> Iterator[str]:
    names = [name for name in _order(figures) if name != PAGETIER]
    yield f"| case | unit | {PAGETIER} | " + " | ".join(f"{name} | ratio" for name in names) + " |"
    yield "| -- | -- | -: |" + " -: | -: |" * len(names)
    yield from (_row(one, names) for one in figures)
    yield ""


def _order(figures: Sequence[Figures]) -> list[str]:
    """Returns the systems of a contest, those of the whole race first."""
    found = {name: None for one in figures for name in one.rounds}
    return [*(name for name in MAKERS if name in found), *(name for name in found if name not in MAKERS)]


def _row(figures: Figures, names: Sequence[str]) -> str:
    cells = [_value(figures, PAGETIER)]
    for name in names:
        both = all(any(figures.rounds.get(who, ())) for who in (PAGETIER, name))
        cells += [_value(figures, name), _ratio(compare(figures, name)) if both else ""]
    return f"| {figures.case} | {figures.unit} | " + " | ".join(cells) + " |"


def _value(figures: Figures, name: str) -> str:
    rounds = figures.rounds.get(name)
    if not rounds:
        return ""
    low, high = median_interval(rounds)
    return f"{_number(statistics.median(rounds))} ({_number(low)} to {_number(high)})"


def _ratio(one: Comparison) -> str:
    text = f"{_number(one.value)} ({_number(one.low)} to {_number(one.high)})"
    return f"**{text}**" if one.verdict is Verdict.BEHIND else text


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _trust(race: Race) -> Iterator[str]:
    seen = [line.observation for line in race.lines if isinstance(line, Observed)]
    if not seen:
        return
    names = [name for name in MAKERS if any(one.system == name for one in seen)]
    yield "## Trust"
    yield ""
    yield "What engines are served after a failure, in pages of 1 MiB, every byte compared: right, wrong (other bytes"
    yield "than were stored), missed. Below it, how long the longest call of an engine took. A dash: the system has"
    yield "no such part. Native offloading keeps its memory in the engine, so an engine's death ends it."
    yield ""
    yield "| failure | " + " | ".join(names) + " |"
    yield "| -- |" + " -- |" * len(names)
    for failure, about in FAILURES.items():
        found = {one.system: one for one in seen if one.failure == failure}
        yield f"| {about.title} | " + " | ".join(_cell(found.get(name)) for name in names) + " |"
    yield ""
    for failure, about in FAILURES.items():
        facts = [_facts(one) for name in names for one in seen if (one.system, one.failure) == (name, failure)]
        yield from (f"### If {about.title}", "", *facts, "") if facts else ()


def _cell(one: Observation | None) -> str:
    if one is None:
        return "not measured"
    if not one.applies:
        return "–"
    waited = "no answer" if one.unanswered else f"{_number(1e3 * one.waited)} ms"
    return f"{served_text(one.served)}; {waited}"


def served_text(served: Served) -> str:
    """Returns what was served in words; wrong pages are marked."""
    parts = [f"{served.right} right"] if served.right else []
    parts += [f"**{served.wrong} wrong**"] if served.wrong else []
    parts += [f"{served.missed} missed"] if served.missed else []
    return ", ".join(parts) or "nothing asked"


def _facts(one: Observation) -> str:
    if not one.applies:
        return f"- {one.system}: does not apply."
    facts = [*one.facts, *(f"an engine got `{error}`" for error in one.errors), *([one.leak] if one.leak else [])]
    return f"- {one.system}: {'; '.join(facts) or served_text(one.served)}."


def _absent(race: Race) -> Iterator[str]:
    absent = [line for line in race.lines if isinstance(line, Absent)]
    if not absent:
        return
    yield "## What was not measured"
    yield ""
    for line in absent:
        reason = " ".join(line.reason.split())
        yield f"- {TITLES.get(line.contest, 'Trust')}: {line.system}: {reason}"
    yield ""


def _how(race: Race) -> Iterator[str]:
    yield "## How it was measured"
    yield ""
    for contest in dict.fromkeys(map(contest_of, race.lines)):
        seconds = f" It took {race.seconds[contest]:.0f} s." if contest in race.seconds else ""
        place = f"bench/race/contests/{contest}" + ("" if contest == "trust" else ".py")
        yield f"- {TITLES.get(contest, 'Trust')}: [{place}](../{place}).{seconds}"
    yield ""
    yield "`make race CONTESTS='lookup trust'` runs some contests again and keeps the results of the others."
