"""Tests what the HTTP process counts of the last hour, with a clock of its own, and how much memory that takes."""

from __future__ import annotations

import asyncio
import sys
from itertools import accumulate, chain
from typing import Any

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.http.page import token_history
from pagetier.daemon.http.page.token_history import MINUTES, TokenHistory, Totals
from virtual_time_loop import OwnTimeLoop

MOST_BYTES = 64 << 10


async def test_each_minute_has_what_the_totals_rose_by(virtual_time: OwnTimeLoop) -> None:
    history = TokenHistory(Totals(100, 100, 100, 100, 100))
    assert history.minutes() == [Totals()]
    virtual_time.passes(30)
    history.add(Totals(110, 101, 100, 102, 100))
    history.add(Totals(115, 101, 100, 102, 100))
    virtual_time.passes(150)
    history.add(Totals(115, 101, 107, 102, 180))
    assert history.minutes() == [Totals(15, 1, 0, 2), Totals(), Totals(), Totals(0, 0, 7, 0, 80)]
    assert history.hour() == Totals(15, 1, 7, 2, 80)
    assert history.hour().tokens == 25
    assert history.written_per_day() == pytest.approx(80 / 180 * 86_400)


async def test_only_the_last_hour_is_known(virtual_time: OwnTimeLoop) -> None:
    history = TokenHistory(Totals())
    totals = list(accumulate(range(1, 201)))
    for total in totals:
        history.add(Totals(memory=total))
        virtual_time.passes(60)
    assert [minute.memory for minute in history.minutes()] == list(range(141, 201))
    virtual_time.passes(3 * 3600)
    history.add(Totals(memory=totals[-1] + 5))
    assert history.minutes() == [*[Totals()] * (MINUTES - 1), Totals(memory=5)]


async def test_counters_that_fall_count_nothing(virtual_time: OwnTimeLoop) -> None:
    history = TokenHistory(Totals(written=500))
    virtual_time.passes(10)
    history.add(Totals(written=100))
    assert history.hour() == Totals()
    assert history.written_per_day() is None, "it is not known in the first minute"


async def test_the_hour_takes_little_memory(virtual_time: OwnTimeLoop) -> None:
    history = TokenHistory(Totals())
    for total in range(10_000):
        virtual_time.passes(15)
        history.add(Totals(*[total << 40] * len(Totals())))
    assert bytes_of(history) < MOST_BYTES


def bytes_of(thing: Any) -> int:
    """Returns the bytes of an object and of all that it refers to."""
    parts = chain(vars(thing).values() if hasattr(thing, "__dict__") else (), thing if isinstance(thing, tuple) else ())
    return sys.getsizeof(thing) + sum(map(bytes_of, parts))


async def test_the_counters_are_read_four_times_a_minute(
    virtual_time: OwnTimeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes in which the page is not requested are counted, too."""
    read = iter([Totals(memory=total) for total in range(1, 10)])
    monkeypatch.setattr(token_history, "read_totals", lambda _: next(read))
    history = TokenHistory(Totals())
    keeping = asyncio.ensure_future(token_history.keep_history(history, None))  # type: ignore[arg-type]
    await loop_clock.pause(121)
    keeping.cancel()
    assert [minute.memory for minute in history.minutes()] == [3, 4, 1]
    assert virtual_time.time() == 121
