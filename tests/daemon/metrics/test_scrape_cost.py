"""Tests what a scrape costs the daemon, by the calls of Python and C: pages and namespaces add none."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import BuiltinMethodType, FrameType

from anonymous_segments import DAY_NS, attach
from in_process_server import SMALL
from page_reservations import reserve
from pagetier.daemon.config.schema import Config
from pagetier.daemon.http.http_server import daemon_numbers
from pagetier.daemon.index.service import Service
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import KEY_BYTES, Owner, ReserveOutcome
from pagetier.shm.segments import Segments

MOST_CALLS = 60


def calls(function: Callable[[], object]) -> Counter[str]:
    """Returns how often a function calls functions of Python and of C, by name."""
    counted: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: BuiltinMethodType) -> None:
        if event in ("call", "c_call"):
            counted[frame.f_code.co_qualname if event == "call" else argument.__qualname__] += 1

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def fill(owner: Owner, slot: int) -> None:
    """Has a process write a page of each namespace."""
    for number in range(SMALL.spaces):
        space = owner.space(bytes([number]) * KEY_BYTES, f"space {number}", 16, 0, 0)
        size = SMALL.frame_bytes.to_bytes(8, "little")
        outcomes, _, _ = reserve(owner, slot, space, 0, 1, DAY_NS, os.urandom(KEY_BYTES), size)
        assert outcomes == bytes([ReserveOutcome.GRANTED])


async def calls_of_scrapes(segments: Segments) -> list[Counter[str]]:
    """Returns the calls of two scrapes: without pages, and with pages of many namespaces."""
    service = Service(segments, Config(), StatusPublisher(segments.owner), asyncio.get_running_loop())
    service.open_to_engines()
    scrape = partial(daemon_numbers, service)
    slot = attach(segments.owner, 1)
    before = calls(scrape)
    fill(segments.owner, slot)
    after = calls(scrape)
    service.close()
    return [before, after]


def test_a_scrape_walks_over_nothing(segments: Segments) -> None:
    """The HTTP process reads the index, and renders."""
    before, after = asyncio.run(calls_of_scrapes(segments))
    assert before == after and after.total() < MOST_CALLS, after
    constant = {"Owner.eviction", "Owner.kept"}
    assert {name for name in after if name.startswith("Owner.")} <= constant
