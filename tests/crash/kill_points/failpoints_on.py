"""In the crash suite's build this is pagetier.shm.failpoints: a point is crossed as those of the core are."""

import ctypes

from pagetier.shm import _core

_crossed = ctypes.PyDLL(_core.__file__).pt_crossed
_crossed.argtypes = [ctypes.c_char_p]
_crossed.restype = None


def point(name: str, /) -> None:
    """Counts it, and ends or stops this process if a test asks."""
    _crossed(name.encode())
