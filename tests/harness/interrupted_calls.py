"""Ends calls by an exception at each place where Python runs a signal handler."""

from __future__ import annotations

import ctypes
import dis
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final

_HANDLER_MAY_FOLLOW: Final = ("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
_CALLBACKS: Final = ("_weakrefset.py", "weakref.py")
"""Modules whose functions Python calls when an object is freed. It drops their exceptions, whatever the call is."""
_raise_at_next_check: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc
_do_nothing: Final = partial(sys.audit, "pagetier.tests.interrupted")


class Interrupt(BaseException):
    """What a signal handler raises."""


@cache
def _offsets_before_checks(code: CodeType) -> frozenset[int]:
    """Returns the instructions whose successor is one after which Python runs signal handlers."""
    pairs = pairwise(dis.get_instructions(code))
    return frozenset(one.offset for one, after in pairs if after.opname.startswith(_HANDLER_MAY_FOLLOW))


class _Interrupter:
    """Traces a call, and raises Interrupt at one place: at the start of a function, or after a call or a loop's step.

    There Python looks for signals. The exception is left for Python to raise as soon as it looks, as that of a signal
    handler: a trace function that raises would do so one instruction later, which may be behind the end of a `try`.
    """

    def __init__(self, place: int, again: int) -> None:
        self._left = place
        self._again = again
        self.came = False

    def enter(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        """Traces the call of a function, which is a place itself."""
        if frame.f_code.co_filename.endswith(_CALLBACKS):
            return None
        if self._is_here(frame):
            raise Interrupt
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._step

    def _step(self, frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
        if event == "opcode" and frame.f_lasti in _offsets_before_checks(frame.f_code) and self._is_here(frame):
            _trace_in_c(frame.f_back)
            return _arming(threading.get_ident())
        return self._step

    def _is_here(self, frame: FrameType) -> bool:
        """Returns whether an interrupt comes here. One in a finalizer, which may run anywhere, comes a place later."""
        self._left -= 1
        if self._left not in (-1, -1 - self._again):
            return False
        if _in_finalizer(frame):
            self._left += 1
            return False
        self.came = True
        return True


def _in_finalizer(frame: FrameType | None) -> bool:
    """Returns whether Python would drop an exception here."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _trace_in_c(frame: FrameType | None) -> None:
    """Keeps Python from raising the exception in a trace function of a caller, if a call is not followed by a check."""
    while frame is not None:
        if frame.f_trace is not None:
            frame.f_trace = _do_nothing
        frame = frame.f_back


def _arming(thread: int) -> Callable[..., Any]:
    """Returns a trace function in C, in which no exception is raised, that makes Python raise Interrupt."""
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, *[ctypes.py_object] * 4)(_address())
    function.restype = {1: _do_nothing}.get  # its result is the next trace function
    return partial(function, thread, Interrupt)


def _address() -> int:
    address = ctypes.cast(_raise_at_next_check, ctypes.c_void_p).value
    assert address is not None
    return address


def _interrupted(call: Callable[[], object], place: int, again: int) -> bool:
    """Returns whether the call was long enough for an interrupt at this place, which then has ended it."""
    interrupter, before = _Interrupter(place, again), sys.gettrace()
    gc.disable()  # Python drops the exceptions of callbacks that others have registered with the collector
    sys.settrace(interrupter.enter)
    try:
        call()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
        gc.enable()
    assert not interrupter.came, f"interrupt {place} was dropped"
    return False


def each_interrupt(call: Callable[[], object], again: int = 0) -> Iterator[int]:
    """Yields after each call that an Interrupt has ended, each time at the next place, until there is none.

    With `again` there is a second Interrupt that many places after the first, while that is handled. Places in the
    functions that were interrupted do not count: it comes in functions that they call then.
    """
    place = 0
    while _interrupted(call, place, again):
        yield place
        place += 1
