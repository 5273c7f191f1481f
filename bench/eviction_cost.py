"""Measures what a store and an eviction cost the daemon with each eviction policy, in CPU time of its thread by page.

The policies measure in turn, in the same process, so that a change of the machine's speed affects both alike.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
from typing import Final

from rich.console import Console
from rich.table import Table

from eviction.core import IN_INDEX, compiled_core
from measure import machine

FIELDS: Final = {
    "store": "a page stored into free memory",
    "replace": "a page stored in the room of another",
    "evict": "a page evicted ahead of need",
    "beside": "a page stored where three fifths are older and protected by a quota",
}


class Costs(ctypes.Structure):
    """Seconds by page; see eviction/cost.c."""

    _fields_ = [(name, ctypes.c_double) for name in FIELDS]


def measure(core: ctypes.CDLL, pages: int, policy: str) -> dict[str, float]:
    """Returns the nanoseconds by page in an index of `pages` pages. Raises MemoryError if memory is short."""
    costs = Costs()
    if core.cost(ctypes.c_uint32(pages), IN_INDEX[policy], ctypes.byref(costs)):
        raise MemoryError
    return {name: 1e9 * getattr(costs, name) for name in FIELDS}


def show(rounds: list[dict[str, dict[str, float]]]) -> None:
    """Prints the medians, and the median of the ratios."""
    table = Table("ns of CPU time", *IN_INDEX, "ratio", title=f"{machine()}, {len(rounds)} rounds")
    for name, about in FIELDS.items():
        medians = [statistics.median(each[policy][name] for each in rounds) for policy in IN_INDEX]
        ratio = statistics.median(each["cadence"][name] / each["lru"][name] for each in rounds)
        table.add_row(about, *[f"{median:.0f}" for median in medians], f"{ratio:.2f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=200_000, help="pages of the index")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    core = compiled_core()
    rounds = [{policy: measure(core, given.pages, policy) for policy in IN_INDEX} for _ in range(given.rounds)]
    show(rounds)


if __name__ == "__main__":
    main()
