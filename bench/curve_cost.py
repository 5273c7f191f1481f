"""`python bench/curve_cost.py`: measures the CPU time that the curve of `pagetier advise` costs a running daemon.

An engine looks up 60 prompts of 100 pages a second and stores what is missing. Two daemons serve the same prompts, and
one of them does not read lookups: the difference of their CPU times is the cost. The arena is so small that every page
is sampled.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from daemon_setup import Stage, settle
from measure import Result, at_most, main
from pagetier.client import Client, Keys, Namespace

ROUNDS: Final = 4
SECONDS: Final = 20.0
LOOKUPS, PAGES = 60, 100  # a second, and in each
FRAME, PROMPTS = 4 << 10, 120  # that the arena has room for
NEW: Final = 0.05
SPACE: Final = Namespace(model="bench", dtype="float32", page_tokens=1)


class WithoutCurve(Stage):
    """A daemon that does not read lookups, so that no process leaves any."""

    PROGRAM = (
        "from pagetier.daemon.index.lookup_reader import LookupReader; LookupReader.poll = lambda self: None; "
        + Stage.PROGRAM
    )


class Cost(msgspec.Struct, frozen=True):
    """The daemon's CPU time in per cent of a core, and what it did: found and stored pages in a second."""

    core: float
    found: float
    stored: float


def measure() -> Iterator[Result]:
    """Measures the difference between pairs of daemons."""
    pairs = [(cost(Stage, seed), cost(WithoutCurve, seed)) for seed in range(ROUNDS)]
    differences = [with_curve.core - without.core for with_curve, without in pairs]
    found = statistics.mean(each.found for pair in pairs for each in pair)
    stored = statistics.mean(each.stored for pair in pairs for each in pair)
    base, most = statistics.mean(without.core for _, without in pairs), max(differences)
    against = f"{base:.2f} % without; at most {most:.2f} %; {found:.0f} pages/s found, {stored:.0f} stored"
    yield Result("the curve, of a core", statistics.mean(differences), "%", against, at_most(1.0))


def cost(kind: type[Stage], seed: int) -> Cost:
    """Returns what a daemon costs."""
    size = ("--arena-size", str(PROMPTS * PAGES * FRAME), "--set", f"arena.frame_size={FRAME}")
    with kind(*size) as stage, stage.client() as client:
        prompts = drawn(seed)
        for keys in prompts[: 2 * PROMPTS]:  # the arena is full before
            serve(client, keys)
        settle()
        before, began, found = cpu_ns(stage), time.monotonic(), 0
        for number, keys in enumerate(prompts[2 * PROMPTS :]):
            found += serve(client, keys)
            time.sleep(max(0.0, began + number / LOOKUPS - time.monotonic()))
        taken = time.monotonic() - began
        stored = (len(prompts) - 2 * PROMPTS) * PAGES - found
        return Cost((cpu_ns(stage) - before) / taken / 1e7, found / taken, stored / taken)


def drawn(seed: int) -> list[Keys]:
    """Returns all prompts in their order, the same for both daemons: those that were used last return most."""
    draw, numbers = random.Random(seed), list(range(2 * PROMPTS))
    for number in range(len(numbers), len(numbers) + int(SECONDS * LOOKUPS)):
        back = min(int(draw.paretovariate(0.8)), len(numbers))
        numbers.append(number if draw.random() < NEW else numbers[-back])
    return [SPACE.keys([number, *range(PAGES - 1)]) for number in numbers]


def serve(client: Client, keys: Keys) -> int:
    """Looks a prompt up, and stores what is missing. Returns the pages that were found."""
    with client.match(keys) as match:
        found = len(match)
    if found < len(keys):
        client.reserve(keys[found:], FRAME, timeout=10).publish()
    return found


def cpu_ns(stage: Stage) -> int:
    """Returns the CPU time of the daemon's thread that does all work."""
    return int(Path(f"/proc/{stage.pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    main("the curve's cost", measure)
