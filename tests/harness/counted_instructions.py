"""Counts the instructions of Python that a thread executes: a cost that does not depend on the machine or its load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class CountedInstructions:
    """Counts the instructions of this thread in functions that are called within a `counted()` block.

    Attributes:
        executed: Their number.
    """

    def __init__(self) -> None:
        self.executed = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts until the end of the block."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        self.executed += event == "opcode"
        return self._step


def instructions_of(call: Callable[[], object]) -> int:
    """Returns how many instructions a call executes, itself included."""
    count = CountedInstructions()
    with count.counted():
        call()
    return count.executed
