"""Writes docs/race.md from the results of a race. What pagetier loses comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from race.contestants.registry import PAGETIER
from race.report.cells import load_of, ratio_of, value_of
from race.report.goals import judged
from race.report.losses import losses_section
from race.report.ratios import compare
from race.report.systems import in_order
from race.report.titles import TITLES
from race.report.trust import CONFIGURATIONS, trust_section
from race.results import Absent, Figures, Form, Race, contest_of

ABOUT = {
    "lookup": "A prompt of 131,072 tokens, from the call to the release of all that was pinned. "
    "Beginning with tokens, hashing them is included; vLLM's block hashes are there anyway.",
    "copies": "Bandwidth over that of one memcpy on one thread in the same process just before; four pages a call.",
    "disk": "Bandwidth over that of O_DIRECT on the same file system in the same round; every write is synced.",
    "serving": "A small model with random weights. Engines take turns with the same prompts.",
    "sharing": "Four engines get the requests of a trace in turn, whatever they have cached. All systems have the same "
    "memory in total; native offloading divides it among the engines. Each trace is replayed once.",
    "router": "The turns of 24 chats go to four real vLLM engines in turn, whatever they have cached. pagetier and "
    "LMCache share 384 MiB, more than all chats take, native offloading divides them among the engines, and vLLM alone "
    "has none; each engine has 40 MiB of its own besides, which count, too. A turn adds 256 tokens that no system can "
    "find, so 80 to 89 % are the most. The systems run one after the other, one request at a time. Ratios are of the "
    "same requests, or of the same turn of all chats; memory is measured after each turn.",
}


_FORMS = {Form.QUICK: "the short form, `QUICK=1`", Form.WHOLE: "the whole race"}


def document(race: Race) -> str:
    """Returns docs/race.md."""
    parts = [*_head(race), *losses_section(race), *_goals(race), *trust_section(race)]
    for contest, title in TITLES.items():
        parts += _contest(race, contest, title)
    parts += [*_absent(race), *_how(race)]
    return "\n".join(parts) + "\n"


def _head(race: Race) -> Iterator[str]:
    yield "# The race"
    yield ""
    yield "pagetier beside what people would choose instead, on one machine, with the same work. `make race` writes"
    yield "this page and `bench/results/race.json`. The machine, date, versions and load of each contest are under"
    yield "[How it was measured](#how-it-was-measured). The configurations and the pages that recommend them are in"
    yield f"[bench/race/configurations.md]({CONFIGURATIONS})."
    yield ""
    if any(isinstance(line, Figures) for line in race.lines):
        yield "Each number is the median of the rounds of one run, and in brackets its 95 % interval. The systems"
        yield "alternate unless a contest says otherwise. A ratio is above 1 where pagetier is better; it is the median"
        yield "of the rounds' ratios. With fewer than six rounds an interval holds less than 95 %. A picture shows the"
        yield "medians and intervals of each contest: an axis for each unit, from zero unless it says that it is"
        yield "logarithmic, and which bars are better."
        yield ""


def _goals(race: Race) -> Iterator[str]:
    found = list(judged(race.lines))
    if not found:
        return
    yield "## Goals"
    yield ""
    yield "A goal is met if the whole interval of every case is above 1, missed if that of any case is below 1,"
    yield "and undecided otherwise."
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
    names = [name for name in in_order(name for one in figures for name in one.rounds) if name != PAGETIER]
    yield f"| case | unit | {PAGETIER} |" + "".join(f" {name} | ratio |" for name in names)
    yield "| -- | -- | -: |" + " -: | -: |" * len(names)
    yield from (_row(one, names) for one in figures)
    yield ""


def _row(figures: Figures, names: Sequence[str]) -> str:
    cells = [value_of(figures, PAGETIER)]
    for name in names:
        both = all(any(figures.rounds.get(who, ())) for who in (PAGETIER, name))
        cells += [value_of(figures, name), ratio_of(compare(figures, name)) if both else ""]
    return f"| {figures.case} | {figures.unit} | " + " | ".join(cells) + " |"


def _absent(race: Race) -> Iterator[str]:
    absent = [line for line in race.lines if isinstance(line, Absent)]
    without = TITLES.keys() - set(map(contest_of, race.lines))
    if not absent and not without:
        return
    yield "## What was not measured"
    yield ""
    for line in absent:
        yield f"- {TITLES[line.contest]}: {line.system}: {' '.join(line.reason.split())}"
    yield from (f"- {title}: this contest was not run." for contest, title in TITLES.items() if contest in without)
    yield ""


def _how(race: Race) -> Iterator[str]:
    yield "## How it was measured"
    yield ""
    for contest, run in race.runs.items():
        place = f"bench/race/contests/{contest}" + ("" if contest == "trust" else ".py")
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        yield f"- {TITLES[contest]}: [{place}](../{place}); {run.began} UTC, {_FORMS[run.form]}."
        yield f"  It took {run.seconds:.0f} s. Machine: {run.machine}. Versions: {versions}."
        yield f"  {load_of(run)}."
    yield ""
    yield "`make race CONTESTS='lookup trust'` runs some contests again and keeps the results of the others."
