"""Counts the cache lines that a match of a shared prefix touches, and models engines that match it at the same time.

The accesses of a match are recorded (`match_lines.c`). Then engines repeat them on processors whose caches hold a line
as their protocol allows: one may write it, or any number may read it. A line moves when a processor needs it and has it
not so. The counts are the same on each machine; the model's times are those of its two assumptions.
"""

from __future__ import annotations

import heapq
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import msgspec

from measure import REPORTED, Result, at_least, at_most, main
from pagetier.shm import _core

HERE = Path(__file__).parent
PAGES = 8  # a system prompt that all requests begin with
CHURN = 20_000  # pages that were stored before, in an index of 8,192
ENGINES = (2, 8, 16, 56)
HIT_NS = 2.0
MOVE_NS = {"one_socket": 100.0, "two_sockets": 300.0}
PRIVATE_NS = 1000.0  # of a match and its release in memory that no other process has: Python, keys
MATCHES = 60  # of each engine
_LINE = 64
_LOCKS = 1


class Kind(IntEnum):
    """The kind of an access, as in traced_accesses.h."""

    READ = 0
    WRITE = 1
    LOCKED = 2
    PREFETCH = 3
    PREFETCH_WRITE = 4

    @property
    def takes(self) -> bool:
        """Whether no other processor may keep the line."""
        return self not in {Kind.READ, Kind.PREFETCH}

    @property
    def waits(self) -> bool:
        """Whether the processor waits for the line."""
        return self in {Kind.READ, Kind.WRITE, Kind.LOCKED}


class Access(NamedTuple):
    """An access to a line of a segment: 0 is the index, 1 the locks."""

    kind: Kind
    segment: int
    line: int


def build(folder: Path) -> Path:
    """Returns the program that prints the accesses of a match."""
    program, core = folder / "match_lines", Path(_core.__file__).parent / "core"
    traced = ("-fsanitize=thread", "-Wno-tsan", "-DPT_SANITIZED", f"-I{core}", "-D_GNU_SOURCE", "-pthread")
    for name, options in (("match_lines", traced), ("traced_accesses", ())):
        source, target = HERE / f"{name}.c", folder / f"{name}.o"
        subprocess.run(["gcc", "-std=gnu11", "-O2", *options, "-c", source, "-o", target], check=True)
    subprocess.run(["gcc", "-pthread", *folder.glob("*.o"), "-lm", "-o", program], check=True)
    return program


def accesses(program: Path, pages: int, churn: int, outcome: str = "hit") -> list[Access]:
    """Returns the accesses of a match of so many pages, and of its release, in order.

    Args:
        program: What build() has returned.
        pages: The number of pages.
        churn: The number of pages that were stored before.
        outcome: "hit", "held" (another request of the engine has the pages pinned) or "miss" (they were not stored).
    """
    command = (program, str(pages), str(churn), outcome)
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (map(int, line.split()) for line in text.splitlines())
    return [Access(Kind(kind), segment, offset // _LINE) for kind, segment, offset in rows]


def lines_of(trace: Sequence[Access], segment: int) -> int:
    """Returns how many lines of a segment the processor waits for."""
    return len({access.line for access in trace if access.segment == segment and access.kind.waits})


class _Line:
    """A line in the caches: which engines may read it, which one may write it, and how far its last move is."""

    def __init__(self) -> None:
        self.readers: set[int] = set()
        self.writer = -1
        self.ends = 0.0
        self.lost: dict[int, float] = {}  # until when an engine still has a line that another one has asked for

    def moves(self, engine: int, kind: Kind, now: float, move_ns: float) -> bool:
        """Returns whether the line has to move to an engine, and moves it."""
        if (self.writer == engine if kind.takes else engine in self.readers) or now < self.lost.get(engine, 0.0):
            return False
        self.ends = max(now, self.ends) + move_ns
        if kind.takes:
            self.lost |= dict.fromkeys(self.readers - {engine}, self.ends - move_ns / 2)
            self.readers, self.writer = {engine}, engine
        else:
            self.readers.add(engine)
            self.writer = -1
        return True


class Model(msgspec.Struct, frozen=True):
    """What engines do that match the same prefix without a pause: moves of lines a match, and matches a second."""

    moved: float
    rate: float


def modelled(trace: Sequence[Access], engines: int, move_ns: float, seed: int = 1) -> Model:
    """Returns the model of engines that repeat these accesses. The seed determines the result."""
    chance, lines = random.Random(seed), dict[tuple[int, int], _Line]()
    queue = [(chance.random() * PRIVATE_NS, engine, 0) for engine in range(engines)]
    heapq.heapify(queue)
    done, moved, began, now = 0, 0, 0.0, 0.0
    warm, total = engines * MATCHES // 5, engines * MATCHES
    while done < total:
        now, engine, at = heapq.heappop(queue)
        kind, segment, number = trace[at]
        line = lines.setdefault((segment, number), _Line())
        moved += line.moves(engine, kind, now, move_ns) and done >= warm
        took = HIT_NS
        if kind.waits and engine in line.readers and line.ends > now:
            took += line.ends - now
        at += 1
        if at == len(trace):
            at, done = 0, done + 1
            took += PRIVATE_NS * (0.5 + chance.random())
            began = now if done == warm else began
        heapq.heappush(queue, (now + took, engine, at))
    return Model(moved / (total - warm), (total - warm) / (now - began) * 1e9)


def measure() -> Iterator[Result]:
    """Yields the counts, and what the model says of engines on one socket and on two."""
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        trace, held = (accesses(program, PAGES, CHURN, outcome) for outcome in ("hit", "held"))
    index, locks = lines_of(trace, 0), lines_of(trace, _LOCKS)
    locked = sum(access.kind is Kind.LOCKED for access in trace)
    nbytes, most = index * _LINE, at_most((2 * PAGES + 1) * _LINE)
    yield Result("match_8_index_bytes", nbytes, "B", f"{index} lines, which no engine writes", most)
    yield Result("match_8_lock_lines", locks, "", "lines that each engine writes, twice", at_most(5))
    yield Result("match_8_locked", locked, "", "instructions: a pin and a release of each page", at_most(2 * PAGES))
    written = len({access.line for access in held if access.kind.takes})
    against = "lines that an engine takes while it has the pages pinned"
    yield Result("match_8_held_lines", written, "", against, at_most(0))
    for where, move_ns in MOVE_NS.items():
        alone = modelled(trace, 1, move_ns)
        for engines in ENGINES:
            model = modelled(trace, engines, move_ns)
            against = f"{model.rate / 1e6:.2f} million matches/s, {model.rate / alone.rate:.2f} times one engine's"
            yield Result(f"match_8_moved_{engines}_engines_{where}", model.moved, "lines", against)
        two = modelled(trace, 2, move_ns).rate / alone.rate
        goal = at_least(1.7) if where == "one_socket" else REPORTED
        yield Result(f"match_8_2_engines_over_1_{where}", two, "x", "by the model", goal)


if __name__ == "__main__":
    main("Cache lines of a match of a shared prefix", measure)
