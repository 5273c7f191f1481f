"""The module pagetier.shm.failpoints of the instrumented build: failpoints in Python work as those of the core."""

import ctypes

_crossed = ctypes.PyDLL(None).pt_crossed
_crossed.argtypes = [ctypes.c_char_p]
_crossed.restype = None


def point(name: str, /) -> None:
    """Records that the failpoint was met, and kills or stops this process if a test asks for it."""
    _crossed(name.encode())
