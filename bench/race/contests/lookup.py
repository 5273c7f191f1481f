"""Is it cached? The time until an engine knows how much of a prompt of 131,072 tokens is cached, and the CPU time.

pagetier, LMCache and files begin with token IDs, so hashing is included. Native offloading begins with vLLM's block
hashes, which vLLM has anyway, and so does pagetier beside it. A lookup ends when everything that it pinned is released.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec

from race.contestants.cache import Sizes
from race.contestants.registry import FILES, HASHED, LMCACHE, NATIVE, PAGETIER, PRIVATE_MEMORY
from race.results import Absent, Figures, Form, Line
from race.rounds import RoundError, Team, Values, cpu_of, run_rounds, stored, teams, together

TOKENS = 131_072
PROCESSES = 4
PAGE = 4096
TIMES = {256: 3, 16: 1}
"""By page size, lookups in a row, of which the time is the mean."""
KNOWN, UNKNOWN = 1, 2
ROUNDS = {Form.QUICK: 5, Form.WHOLE: 15}
_UNITS = {"CPU": ("s", "low"), "": ("ms", "low")}


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields the figures for pages of 256 and of 16 tokens."""
    for page_tokens in (256, 16):
        with ExitStack() as stack:
            yield from _measure(page_tokens, ROUNDS[form], folder, stack)


def _measure(page_tokens: int, rounds: int, folder: Path, stack: ExitStack) -> Iterator[Line]:
    pages, running = TOKENS // page_tokens, dict[str, Team]()
    sizes = Sizes(512 << 20, PAGE, page_tokens)
    for one in teams("lookup", (PAGETIER, HASHED, LMCACHE, NATIVE, FILES), sizes, PROCESSES, folder, stack):
        if isinstance(one, tuple):
            running[one[0]] = one[1]
        else:
            yield one
    for name, team in list(running.items()):
        try:
            for engine in team.engines if name in PRIVATE_MEMORY else team.engines[:1]:
                stored(team, engine, KNOWN, pages)
        except RoundError as error:
            yield Absent("lookup", name, f"pages of {page_tokens} tokens: {error}")
            del running[name]
    play = functools.partial(_play, pages, TIMES[page_tokens])
    for line in run_rounds("lookup", running, rounds, play, _UNITS):
        if isinstance(line, Figures):
            yield from _by_prompt(line, page_tokens)
        else:
            yield line


def _by_prompt(line: Figures, page_tokens: int) -> Iterator[Figures]:
    """Yields the figures of the systems that begin with tokens, and of those that begin with block hashes."""
    for prompt, names in (("tokens", (PAGETIER, LMCACHE, FILES)), ("block hashes", (HASHED, NATIVE))):
        rounds = {PAGETIER if name == HASHED else name: line.rounds[name] for name in names if name in line.rounds}
        case = f"from {prompt}, pages of {page_tokens} tokens, {line.case}"
        yield msgspec.structs.replace(line, case=case, rounds=rounds)


def _play(pages: int, times: int, team: Team, number: int) -> Values:
    del number
    values = Values()
    for what, prompt, found in (("hit", KNOWN, pages), ("miss", UNKNOWN, 0)):
        for processes in (1, PROCESSES):
            case = f"{what}, {processes} {'process' if processes == 1 else 'processes'}"
            before = cpu_of(team.cache.pids())
            answers = together(team.engines[:processes], "lookups", prompt, pages, times)
            cpu = cpu_of(team.cache.pids()) - before + sum(answer.cpu for answer in answers)
            if any(answer.value != found for answer in answers):
                raise RoundError(f"{[answer.value for answer in answers]} pages found instead of {found}")
            values[case] = 1e3 * sum(answer.seconds for answer in answers) / times / processes
            values[f"{case}, CPU of 1,000"] = 1e3 * cpu / times / processes
    return values
