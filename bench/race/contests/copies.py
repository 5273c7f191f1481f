"""Store and load of pages of 8 and 32 MiB by one and by two engines, over memcpy.

The value of a round is the bandwidth divided by that of one memcpy on one thread in the same process just before. Each
page that is loaded is compared afterwards. Native offloading is absent: its copier needs a GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from race.contestants.cache import Sizes
from race.contestants.registry import FILES, LMCACHE, NATIVE, PAGETIER
from race.engine_process import Served
from race.results import Absent, Figures, Form, Line
from race.rounds import RoundError, Team, Values, each, run_rounds, stored, teams, together

MIB = 1 << 20
PAGES = 4
MEMORY = 1536 * MIB
PAGE_TOKENS = 256
ROUNDS = {Form.QUICK: 7, Form.WHOLE: 25}
_UNITS = {"": ("x memcpy", "high")}
_PROMPTS = itertools.count(1)


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields the figures of both sizes."""
    yield Absent("copies", NATIVE, "its copier needs a GPU")
    for page in (8 * MIB, 32 * MIB):
        with ExitStack() as stack:
            yield from _measure(page, ROUNDS[form], folder, stack)


def _measure(page: int, rounds: int, folder: Path, stack: ExitStack) -> Iterator[Line]:
    running, sizes = dict[str, Team](), Sizes(MEMORY, page, PAGE_TOKENS)
    for one in teams("copies", (PAGETIER, LMCACHE, FILES), sizes, 2, folder, stack):
        if isinstance(one, tuple):
            try:
                _touch(one[1])
                running[one[0]] = one[1]
            except RoundError as error:
                yield Absent("copies", one[0], f"pages of {page // MIB} MiB: {error}")
        else:
            yield one
    for line in run_rounds("copies", running, rounds, _play, _UNITS):
        if isinstance(line, Figures):
            line.case = f"pages of {page // MIB} MiB, {line.case}"
        yield line


def _touch(team: Team) -> None:
    """Stores as much as fits, so that no measured store writes to memory that was never written."""
    for _ in range(MEMORY // team.sizes.page // PAGES):
        stored(team, team.engines[0], next(_PROMPTS), PAGES)


def _play(team: Team, number: int) -> Values:
    del number
    values = Values()
    for count in (1, 2):
        engines = team.engines[:count]
        memcpy = together(engines, "memcpy", PAGES)
        fresh = [(next(_PROMPTS), PAGES) for _ in range(count)]
        stores = each(engines, "store", fresh)
        loads = each(engines, "load", fresh)
        if any(answer.value != PAGES for answer in stores) or any(
            answer.value != Served(right=PAGES) for answer in loads
        ):
            continue
        who = f"{count} {'engine' if count == 1 else 'engines'}"
        for what, answers in (("store", stores), ("load", loads)):
            pairs = zip(memcpy, answers, strict=True)
            values[f"{what}, {who}"] = sum(base.seconds / answer.seconds for base, answer in pairs)
    if not values:
        raise RoundError("no round in which everything was stored and loaded")
    return values
