"""Derives hints from a trace: what an engine would say that knows when sessions return, and is wrong now and then."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from eviction.traces import Trace

KINDS: Final = ("over", "returns")
_WITHIN_S: Final = (20.0, 60.0, 300.0)
_NONE, _OVER, _FIRST_WITHIN = 0, 1, 2  # as enum pt_hint has them, then within 60 s, within 300 s, later
_LATER: Final = _FIRST_WITHIN + len(_WITHIN_S)


class HintsWanted(msgspec.Struct, frozen=True):
    """Which hints to derive.

    Attributes:
        kind: "over" says of the last request of a session that it is over; "returns" says of each when it returns.
        right: The share of requests whose hint is right. The others get another one, drawn at random.
        seed: Decides which ones.
    """

    kind: str
    right: float
    seed: int = 1

    @classmethod
    def parse(cls, text: str, seed: int) -> HintsWanted:
        """Returns what KIND:SHARE says. Raises ValueError if it says nothing."""
        kind, _, right = text.partition(":")
        if kind not in KINDS or not 0 <= float(right) <= 1:
            raise ValueError(text)
        return cls(kind, float(right), seed)


def seconds_until_return(
    starts: npt.NDArray[np.int64], pages: npt.NDArray[np.int32], seconds: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Returns for each request the seconds until the next one that continues it: infinity if there is none.

    A request continues another one if it has its last page.
    """
    until = np.full(len(seconds), np.inf)
    waiting: dict[int, list[int]] = {}
    for request in range(len(seconds)):
        prompt = pages[starts[request] : starts[request + 1]].tolist()
        for page in prompt:
            for earlier in waiting.pop(page, ()):
                until[earlier] = seconds[request] - seconds[earlier]
        if prompt:
            waiting.setdefault(prompt[-1], []).append(request)
    return until


def with_hints(trace: Trace, wanted: HintsWanted) -> Trace:
    """Returns the trace with hints that were derived from it."""
    until = seconds_until_return(trace.starts, trace.pages, trace.seconds)
    return msgspec.structs.replace(trace, hints=derived_hints(until, wanted))


def derived_hints(until: npt.NDArray[np.float64], wanted: HintsWanted) -> npt.NDArray[np.uint8]:
    """Returns the hint of each request, of which a share is wrong."""
    over = ~np.isfinite(until)
    if wanted.kind == "over":
        true, others = np.where(over, _OVER, _NONE), np.array([_NONE, _OVER])
    else:
        true = np.where(over, _OVER, _FIRST_WITHIN + np.searchsorted(_WITHIN_S, until))
        others = np.arange(_OVER, _LATER + 1)
    random = np.random.default_rng(wanted.seed)
    wrong = random.random(len(until)) >= wanted.right
    at = np.searchsorted(others, true)
    drawn = others[(at + random.integers(1, len(others), len(until))) % len(others)]
    return np.where(wrong, drawn, true).astype(np.uint8)
