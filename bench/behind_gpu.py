"""Replays traces of prompts through an engine's own cache with the daemon's cache behind it, for each time of a store.

Hits are tokens of full pages that either cache has, in per cent of what one cache of both sizes could hit at most.
bench/policies.py explains the traces.
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from eviction.core import IN_INDEX, Outcome, compiled_core, hits_of, record_of
from eviction.traces import Trace, read_trace

TIMES: Final = {"eager": 0, "on_eviction": 1}


def replay(core: ctypes.CDLL, trace: Trace, gpu: int, host: int, policy: str, when: str) -> Outcome:
    """Replays a trace with room for `gpu` and `host` pages.

    Raises:
        MemoryError: There is not enough memory.
        AssertionError: The index is damaged afterwards.
    """
    given, out = record_of(trace), Outcome()
    sizes = trace.distinct, gpu, host
    if core.replay_behind_gpu(ctypes.byref(given), *sizes, IN_INDEX[policy], TIMES[when], ctypes.byref(out)):
        raise MemoryError
    if out.findings:
        raise AssertionError(f"the index has {out.findings} findings after the replay")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE:TOKENS", help="a trace, and the tokens of its blocks")
    parser.add_argument("--gpu", type=float, default=2.0, help="the engine's cache in %% of the different pages")
    parser.add_argument("--host", type=float, default=5.0, help="the daemon's cache")
    given = parser.parse_args()
    table = Table("trace", "policy", "store", "hits in % of the optimum", "pages stored")
    core = compiled_core()
    for each in given.traces:
        path, _, tokens = each.rpartition(":")
        trace = read_trace(Path(path), int(tokens))
        gpu, host = trace.room(given.gpu), trace.room(given.host)
        best = hits_of(core, "optimum", trace, gpu + host)
        for policy in IN_INDEX:
            for when in TIMES:
                out = replay(core, trace, gpu, host, policy, when)
                hits = f"{100 * out.hits / max(1, best):.1f}"
                table.add_row(Path(path).name.partition(".")[0], policy, when, hits, f"{out.stored:,}")
    Console().print(table)


if __name__ == "__main__":
    main()
