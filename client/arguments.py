"""Values that callers pass: integers and seconds of any type, as Python's own, and paths.

Wrong use that an engine's forward pass must survive raises no exception: it is logged once.
"""

from __future__ import annotations

import logging
import math
import numbers
import operator
import os
from enum import Enum
from typing import Final, Protocol

log = logging.getLogger("pagetier.client")

_MOST_COUNT: Final = 2**31 - 1  # the range of token counts in the index
_LONGEST_S: Final = 1e6  # the daemon is not asked to wait for ever


def integer_of(what: str, value: object) -> int:
    """Returns an integer of any integer type. Raises TypeError for other values, including bools."""
    if type(value) is int:
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]  # raises TypeError
    except TypeError:
        pass
    raise TypeError(f"{what} must be an integer, not {_shown(value)}")


def natural_of(what: str, value: object) -> int:
    """Returns an integer from 0 on, of any integer type. Raises TypeError as integer_of(), ValueError if negative."""
    if (number := integer_of(what, value)) < 0:
        raise ValueError(f"{what} must be 0 or more, not {number}")
    return number


def count_of(what: str, value: object) -> int:
    """Returns an integer of any integer type. Raises ValueError unless it is an integer from 1 to 2**31-1."""
    try:
        number = integer_of(what, value)
    except TypeError as error:
        raise ValueError(str(error)) from None
    if not 1 <= number <= _MOST_COUNT:
        raise ValueError(f"{what} must be 1 or more and below 2**31, not {number}")
    return number


def seconds_of(what: str, value: object) -> float:
    """Returns a number of seconds, of any type of real numbers.

    Raises:
        TypeError: It is another value, or a bool.
        ValueError: It is NaN, which a caller's own arithmetic may give.
    """
    # float first: asking the registry of numbers.Real takes several times as long
    if isinstance(value, bool) or not isinstance(value, (float, numbers.Real)):
        raise TypeError(f"{what} must be a number of seconds, not {_shown(value)}")
    if math.isnan(seconds := float(value)):
        raise ValueError(f"{what} must be a number of seconds, not NaN")
    return seconds


def seconds_left(what: str, value: object) -> float:
    """Returns a number of seconds from 0 on. Raises what seconds_of() does, and ValueError if it is negative."""
    seconds = seconds_of(what, value)
    if seconds < 0:
        raise ValueError(f"{what} must be 0 seconds or more, not {value}")
    return seconds


def path_of(what: str, value: object) -> str:
    """Returns a path as text. Raises TypeError for other values, including bytes."""
    if isinstance(value, str | os.PathLike) and isinstance(path := os.fspath(value), str):
        return path
    raise TypeError(f"{what} must be a path, not {type(value).__name__}")


def _shown(value: object) -> str:
    """Returns a text as it was passed, since it shows the mistake; of other values the type."""
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__


class Misuse(Enum):
    """A kind of wrong use: what happened, and what follows or what to do."""

    CLOSED = "match() of a client that is closed: every match is a miss"
    RELEASED = "load() of a match that is released: load its pages before release() or the end of its with block"
    NEGATIVE_TIMEOUT = (
        "a timeout below 0 counts as 0, which waits for nothing: pass seconds, or None for the client's own"
    )
    OTHER_SIZE = "load() of pages into buffers of another size than the pages: nothing is loaded"


class MisuseLog:
    """The kinds of wrong use that one client has logged. Each kind is logged once."""

    def __init__(self) -> None:
        self._logged: set[Misuse] = set()

    def report(self, kind: Misuse) -> None:
        """Logs a warning, unless one of this kind was logged before."""
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("%s; further cases are not logged", kind.value)


class WaitingClient(Protocol):
    """The part of a Client that says how long its calls may wait."""

    timeout: float
    misuse: MisuseLog


def seconds_to_wait(client: WaitingClient, timeout: object) -> float:
    """Returns the seconds that a call with this `timeout` may wait, at least 0; None stands for the client's timeout.

    A negative number is often what is left of a caller's own time, so it is logged and raises nothing.

    Raises:
        TypeError: The timeout is not a number.
        ValueError: It is NaN.
    """
    seconds = client.timeout if timeout is None else seconds_of("timeout", timeout)
    if seconds < 0:
        client.misuse.report(Misuse.NEGATIVE_TIMEOUT)
    return min(max(0.0, seconds), _LONGEST_S)
