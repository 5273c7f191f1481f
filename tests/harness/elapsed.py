"""Limits on the duration of calls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasts(most: float, least: float = 0.0) -> Iterator[None]:
    """Asserts that the block takes at least `least` and less than `most` seconds."""
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    assert least <= seconds < most, f"{seconds:.2f} s, not {least} to {most} s"
