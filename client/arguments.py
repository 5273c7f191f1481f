"""Values that callers pass: integers and seconds of any type, including numpy's, as Python's own, and paths."""

from __future__ import annotations

import math
import numbers
import operator
import os
from typing import Final

_MOST_COUNT: Final = 2**31 - 1  # the range of token counts in the index


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
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
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
