"""Tests what a small store costs the daemon in executed instructions of Python: before its response, and after it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from pagetier.daemon.config.loader import Config
from pagetier.daemon.index.service import Service
from pagetier.daemon.status.publisher import StatusPublisher
from pagetier.shm._core import KEY_BYTES, page_requests
from pagetier.shm.message_codec import pack
from pagetier.shm.protocol import Prompt, Reserve, Space
from pagetier.shm.segments import Segments

MOST_BEFORE: Final = 120  # instructions: the engine waits for them
MOST_AFTER: Final = 200  # the next store waits for them
STORES: Final = 20
FRAME: Final = 4096


class Instructions:
    """Counts the instructions of Python that this thread executes.

    Attributes:
        executed: How many there were.
    """

    def __init__(self) -> None:
        self.executed = 0

    def enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
        """Begins with a function. For sys.settrace()."""
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        self.executed += event == "opcode"
        return self._step


def store(number: int) -> bytes:
    """Returns the message of a store of one page."""
    pages = page_requests(os.urandom(KEY_BYTES), FRAME.to_bytes(8, "little"))
    return pack(Reserve(number, Space(bytes(KEY_BYTES), "model", 16), 0, 1, pages, prompts=(Prompt(0, b"", 0),)))


async def instructions_of_stores(segments: Segments) -> tuple[float, float]:
    """Returns the instructions of a store before and after its response."""
    service = Service(segments, Config(), StatusPublisher(segments.owner), asyncio.get_running_loop())
    service.open_to_engines()
    slot, counted, sent = segments.owner.attach(os.getpid(), 0, 0, 1, "engine"), Instructions(), list[int]()

    def respond(_response: bytes) -> None:
        sent.append(counted.executed)

    messages = [store(number) for number in range(STORES + 1)]
    ends, before, after = service.ends(slot), 0, 0
    for number, message in enumerate(messages):
        began = counted.executed
        sys.settrace(counted.enter)
        try:
            served = service.reservations.serve_message(slot, ends, memoryview(message), len(message), respond)
        finally:
            sys.settrace(None)
        assert served
        if number:  # the first one counts the frames of the process
            before += sent[-1] - began
            after += counted.executed - sent[-1]
    service.close()
    return before / STORES, after / STORES


def test_a_small_store_costs_few_instructions(segments: Segments) -> None:
    """One page takes the core less than a microsecond, and an instruction of Python about 20 ns."""
    before, after = asyncio.run(instructions_of_stores(segments))
    assert 0 < before <= MOST_BEFORE, f"{before} before the response, {after} after it"
    assert 0 < after <= MOST_AFTER, f"{before} before the response, {after} after it"
