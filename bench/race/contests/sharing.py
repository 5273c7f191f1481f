"""Four engines behind a router that gives them the requests of a trace in turn: how many tokens each system has.

Every system has the same memory in total, a fifth of the trace's distinct blocks. pagetier and LMCache share it; native
offloading divides it among the engines. For each request an engine looks up its blocks and stores all of them, in the
order of the trace. A block is a page of 4 KiB, because only which blocks are found is counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from eviction.traces import Trace, read_trace
from race.contestants.cache import Sizes
from race.contestants.registry import LMCACHE, NATIVE, PAGETIER
from race.results import Absent, Figures, Form, Line
from race.rounds import RoundError, Team, teams, together

BLOCK_TOKENS = 512
"""Tokens of a block in traces of Mooncake's format."""
ENGINES = 4
PAGE, PAGE_TOKENS = 4096, 16
SHARE = 20.0
REQUESTS = {Form.QUICK: 1500, Form.WHOLE: 12_000}
MOST_BLOCKS = 300_000
"""Blocks of all requests of a trace: later requests are left out."""


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields the share of tokens that were found in each trace that `TRACE` names, as FILE or FILE:BLOCK_TOKENS."""
    names = os.environ.get("TRACE", "").split()
    if not names:
        yield Absent("sharing", "all", "no trace was given: make race TRACE=conversation.jsonl.gz")
    for name in names:
        file, _, block = name.partition(":")
        trace = read_trace(Path(file), int(block or BLOCK_TOKENS))
        yield from _found(
            file.removesuffix(".gz").removesuffix(".jsonl").rpartition("/")[2], _first(trace, REQUESTS[form]), folder
        )


def _found(title: str, trace: Trace, folder: Path) -> Iterator[Line]:
    """Yields the share of a trace's tokens that each system found."""
    room = trace.room(SHARE)
    found: dict[str, list[float]] = {}
    for name, pages in ((PAGETIER, room), (LMCACHE, room), (NATIVE, room // ENGINES)):
        with ExitStack() as stack:
            for one in teams("sharing", (name,), Sizes(pages * PAGE, PAGE, PAGE_TOKENS), ENGINES, folder, stack):
                if not isinstance(one, tuple):
                    yield one
                    continue
                try:
                    found[name] = [100 * _replay(one[1], trace) / len(trace.pages)]
                except RoundError as error:
                    yield Absent("sharing", name, str(error))
    case = f"{title}: tokens of {len(trace.starts) - 1:,} requests found, memory for {SHARE:g} % of the blocks"
    yield Figures("sharing", case, "%", "high", found)


def _first(trace: Trace, requests: int) -> Trace:
    """Returns the first requests of a trace with MOST_BLOCKS at most, whose pages are numbered from 0 again."""
    fitting = int((trace.starts <= MOST_BLOCKS).sum())
    starts = trace.starts[: min(requests + 1, fitting)]
    pages = trace.pages[: starts[-1]]
    return msgspec.structs.replace(trace, starts=starts, pages=pages, distinct=len(set(pages.tolist())))


def _replay(team: Team, trace: Trace) -> int:
    """Returns how many blocks were found."""
    return sum(
        _visit(team, number, trace.pages[begin:end].tolist())
        for number, (begin, end) in enumerate(zip(trace.starts[:-1], trace.starts[1:], strict=True))
        if end > begin
    )


def _visit(team: Team, number: int, blocks: Sequence[int]) -> int:
    (answer,) = together([team.engines[number % ENGINES]], "visit", blocks)
    return int(answer.value)
