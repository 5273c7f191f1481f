"""The report's section about failures."""

from __future__ import annotations

from collections.abc import Iterator

from race.contestants.registry import MAKERS
from race.contests.trust.contest import LMCACHE_GRACE_S, LMCACHE_REAP_S, PARALLEL_TESTS
from race.contests.trust.failures import FAILURES
from race.contests.trust.observation import Observation
from race.report.cells import load_of, milliseconds, served_text
from race.results import Observed, Race

CONFIGURATIONS = "../bench/race/configurations.md"


def trust_section(race: Race) -> Iterator[str]:
    """Yields the table of failures and what was seen in each."""
    seen = [line.observation for line in race.lines if isinstance(line, Observed)]
    if not seen:
        return
    names = [name for name in MAKERS if any(one.system == name for one in seen)]
    yield "## Trust"
    yield ""
    yield from _about(race)
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


def _about(race: Race) -> Iterator[str]:
    yield "What engines are served after a failure, in pages of 1 MiB, every byte compared: right, wrong (other bytes"
    yield "than were stored), missed. A dash: the system has no such part."
    yield ""
    yield f"- After the semicolon: the longest call of an engine. Up to {PARALLEL_TESTS} tests run at once, so times"
    yield "  include the load of the others."
    yield from (f"  {load_of(run)}." for contest, run in race.runs.items() if contest == "trust")
    yield "- Native offloading keeps its memory in the engine, so an engine's death ends it."
    yield f"- LMCache's server has a timeout of {LMCACHE_REAP_S} s for silent engines instead of 120, and of"
    yield f"  {LMCACHE_GRACE_S} s for engines that have sent no heartbeat yet instead of 3,600"
    yield f"  ([configurations]({CONFIGURATIONS}))."
    yield "  With the defaults the server releases the pages of a dead engine later."
    yield "- During the restart an engine loads the same 16 pages until the server is back, so the numbers of pages"
    yield "  differ."
    yield "- pagetier's daemon keeps frames free for the next store: when none of the 256 is free, it evicts until 2"
    yield "  are (`evict.free`, 1 %), so 254 pages stay."
    yield "- For the other user the race sets folders to mode 0755; a miss is then what keeps users apart."


def _cell(one: Observation | None) -> str:
    if one is None:
        return "not measured"
    if not one.applies:
        return "–"
    waited = "no answer" if one.unanswered else milliseconds(one.waited)
    return f"{served_text(one.served)}; {waited}"


def _facts(one: Observation) -> str:
    if not one.applies:
        return f"- {one.system}: does not apply."
    facts = [*one.facts, *(f"an engine got `{error}`" for error in one.errors), *([one.leak] if one.leak else [])]
    return f"- {one.system}: {'; '.join(facts) or served_text(one.served)}."
