"""Replays traces of prompts against the eviction policies, and compares them with what is possible at most.

The policies run in the daemon's own index, with the trace's clock; no bytes are copied. The optimum knows all later
requests. Hits are tokens of full pages before the first one of a prompt that is missing, in per cent of the optimum's.
A trace has one JSON object a line: timestamp in ms, input_length, hash_ids (the format of `pagetier replay`).
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = Path(__file__).parent / "eviction"
POLICIES: Final = {"lru": 0, "cadence": 1}
SHARES: Final = (1.0, 2.0, 5.0, 10.0, 20.0)


class Line(msgspec.Struct, frozen=True):
    """A request: when it arrived in ms, the tokens of its prompt, and a number for each block of it."""

    timestamp: float
    input_length: int
    hash_ids: list[int]


class Trace(msgspec.Struct, frozen=True, eq=False):
    """Requests in their order, full blocks only.

    Attributes:
        starts: i64, where each request begins in `pages`, and the end.
        pages: i32, the pages of all prompts, numbered from 0.
        seconds: f64, when each request arrived.
        distinct: The number of different pages.
    """

    starts: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.float64]
    distinct: int

    def room(self, share: float) -> int:
        """Returns the pages in a cache of this share, in per cent, of all different pages."""
        return max(1, round(self.distinct * share / 100))


class Cell(msgspec.Struct, frozen=True):
    """A policy on a trace, with room for a share of its pages.

    Attributes:
        percent: Its hits in per cent of the optimum's.
        followed: The share of requests during which the policy followed LRU.
        left_out: The share of missing pages that were not stored.
        store_ns: CPU time of all stores, by missing page.
    """

    trace: str
    share: float
    policy: str
    percent: float
    followed: float = 0.0
    left_out: float = 0.0
    store_ns: float = 0.0


class _Trace(ctypes.Structure):
    _fields_ = [
        ("starts", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("requests", ctypes.c_int64),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("hits", ctypes.c_int64),
        ("stored", ctypes.c_int64),
        ("left_out", ctypes.c_int64),
        ("followed", ctypes.c_int64),
        ("findings", ctypes.c_int64),
        ("store_seconds", ctypes.c_double),
    ]


def read_trace(path: Path, page_tokens: int) -> Trace:
    """Returns a trace. Blocks that a prompt fills only in part are left out.

    Raises:
        OSError: The file cannot be read.
        msgspec.MsgspecError: A line is not a request.
    """
    decoder = msgspec.json.Decoder(Line)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = [decoder.decode(line) for line in text.splitlines() if line.strip()]
    prompts = [line.hash_ids[: line.input_length // page_tokens] for line in lines]
    names, pages = np.unique(np.array([page for prompt in prompts for page in prompt], np.int64), return_inverse=True)
    starts = np.concatenate([[0], np.cumsum([len(prompt) for prompt in prompts])]).astype(np.int64)
    return Trace(starts, pages.astype(np.int32), np.array([line.timestamp for line in lines]) / 1000, len(names))


def compile_core(folder: Path) -> ctypes.CDLL:
    """Returns the library of the index and the optimum, compiled into `folder`."""
    target = folder / "eviction.so"
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'shm'}"]
    subprocess.run(["cc", *flags, *sources, "-o", str(target), "-lm"], check=True)
    core = ctypes.CDLL(str(target))
    core.optimum.restype = ctypes.c_int64
    core.optimum.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int64]
    core.replay.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_double, ctypes.c_void_p]
    return core


def optimum(core: ctypes.CDLL, trace: Trace, room: int) -> int:
    """Returns the pages that a cache with room for `room` pages could hit at most."""
    requests = len(trace.seconds)
    return int(core.optimum(trace.starts.ctypes.data, trace.pages.ctypes.data, requests, trace.distinct, room))


def replay(core: ctypes.CDLL, trace: Trace, room: int, policy: str, speed: float = 1.0) -> _Outcome:
    """Replays a trace `speed` times as fast through an index with room for `room` pages.

    Raises:
        MemoryError: There is not enough memory.
        AssertionError: The index is damaged afterwards.
    """
    given = _Trace(trace.starts.ctypes.data, trace.pages.ctypes.data, trace.seconds.ctypes.data, len(trace.seconds))
    out = _Outcome()
    if core.replay(ctypes.byref(given), room, POLICIES[policy], speed, ctypes.byref(out)):
        raise MemoryError
    if out.findings:
        raise AssertionError(f"the index has {out.findings} findings after the replay")
    return out


def measure(core: ctypes.CDLL, traces: dict[str, Trace], shares: Sequence[float], speed: float) -> Iterator[Cell]:
    """Yields all cells."""
    for name, trace in traces.items():
        for share in shares:
            best = optimum(core, trace, trace.room(share))
            for policy in POLICIES:
                out = replay(core, trace, trace.room(share), policy, speed)
                missing = max(1, out.stored + out.left_out)
                yield Cell(
                    name,
                    share,
                    policy,
                    100 * out.hits / max(1, best),
                    out.followed / max(1, len(trace.seconds)),
                    out.left_out / missing,
                    1e9 * out.store_seconds / missing,
                )


def show(cells: Sequence[Cell]) -> None:
    """Prints a table with a row for each policy on each trace."""
    shares = sorted({cell.share for cell in cells})
    table = Table("trace", "policy", *[f"{share:g} %" for share in shares], "mean", title="hits in % of the optimum")
    for name in dict.fromkeys(cell.trace for cell in cells):
        for policy in POLICIES:
            row = [cell.percent for cell in cells if (cell.trace, cell.policy) == (name, policy)]
            table.add_row(name, policy, *[f"{percent:.1f}" for percent in row], f"{sum(row) / len(row):.1f}")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", metavar="FILE:TOKENS", help="a trace, and the tokens of its blocks")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="sizes in %% of the different pages")
    parser.add_argument("--speed", type=float, default=1.0, help="how much faster the clock runs")
    parser.add_argument("--json", action="store_true", help="print one object a cell")
    given = parser.parse_args()
    traces = {}
    for each in given.traces:
        path, _, tokens = each.rpartition(":")
        if not path or not tokens.isdecimal():
            parser.error(f"{each}: write FILE:TOKENS, for example trace.jsonl.gz:512")
        traces[Path(path).name.partition(".")[0]] = read_trace(Path(path), int(tokens))
    with tempfile.TemporaryDirectory() as folder:
        cells = [*measure(compile_core(Path(folder)), traces, given.shares, given.speed)]
    if given.json:
        rows: list[dict[str, Any]] = [msgspec.to_builtins(cell) for cell in cells]
        sys.stdout.write("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        show(cells)


if __name__ == "__main__":
    main()
