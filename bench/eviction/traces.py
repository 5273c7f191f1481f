"""Traces of prompts, alone or merged."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt


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
        hints: u8, what is said of each request; None: nothing.
    """

    starts: npt.NDArray[np.int64]
    pages: npt.NDArray[np.int32]
    seconds: npt.NDArray[np.float64]
    distinct: int
    hints: npt.NDArray[np.uint8] | None = None

    def room(self, share: float) -> int:
        """Returns the pages in a cache of this share, in per cent, of all different pages."""
        return max(1, round(self.distinct * share / 100))


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


def merged(first: Trace, second: Trace, later: float = 0.0) -> Trace:
    """Returns the requests of two traces, which have no page in common, by their times.

    Args:
        first: A trace.
        second: A trace that begins `later` seconds after the first one.
        later: See `second`. The hints of both remain, if both have some.
    """
    seconds = np.concatenate([first.seconds, second.seconds + later])
    order = np.argsort(seconds, kind="stable")
    prompts = [*_prompts(first), *(prompt + first.distinct for prompt in _prompts(second))]
    chosen = [prompts[request] for request in order]
    starts = np.concatenate([[0], np.cumsum([len(prompt) for prompt in chosen])]).astype(np.int64)
    pages = np.concatenate(chosen).astype(np.int32)
    hints = None
    if first.hints is not None and second.hints is not None:
        hints = np.concatenate([first.hints, second.hints])[order]
    return Trace(starts, pages, seconds[order], first.distinct + second.distinct, hints)


def _prompts(trace: Trace) -> list[npt.NDArray[np.int32]]:
    return np.split(trace.pages, trace.starts[1:-1])
