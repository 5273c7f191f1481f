"""The module pagetier.shm.failpoints of the instrumented build: failpoints in Python work as those of the core."""

import ctypes

from pagetier.shm import _core

_crossed = ctypes.PyDLL(_core.__file__).pt_crossed
_crossed.argtypes = [ctypes.c_char_p]
_crossed.restype = None


def point(name: str, /) -> None:
    """Counts a crossing, and kills or stops this process if a test armed the failpoint."""
    _crossed(name.encode())
