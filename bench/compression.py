"""Measures the compression of pages on one core, relative to memcpy in the same run; ratios of real keys and values."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from measure import REPORTED, Goal, Result, at_least, main, median_times
from pagetier.shm._core import compress, expand

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))
from kv_pages import kv_page

MIB = 1 << 20
PAGE = 2 * MIB
WORKING_SET = 128 * MIB  # several times the last-level cache
ROUNDS = 200

Bytes = npt.NDArray[np.uint8]


def wide_page() -> bytes:
    """Returns bfloat16 values of 14 exponents in each channel, for which codes of 3 bits are too short."""
    rng = np.random.default_rng(3)
    values = rng.integers(113, 127, PAGE // 2) << 7 | rng.integers(0, 128, PAGE // 2)
    return values.astype(np.uint16).tobytes()


def measured(name: str, page: bytes, ratio: Goal, goal_in: Goal, goal_out: Goal) -> Iterator[Result]:
    """Yields the ratio of a page and the rates of its compression and expansion."""
    out = bytearray(2 * PAGE)
    length = compress([page], out) or PAGE
    pages = np.tile(np.frombuffer(page, np.uint8), (WORKING_SET // PAGE, 1))
    coded = np.tile(np.frombuffer(bytes(out[:length]), np.uint8), (WORKING_SET // PAGE, 1))
    target = np.ones((WORKING_SET // PAGE, PAGE + PAGE // 8), np.uint8)
    rows = itertools.cycle(range(len(pages)))

    def copy() -> None:
        row = next(rows)
        ctypes.memmove(target[row].ctypes.data, pages[row].ctypes.data, PAGE)

    def code() -> None:
        row = next(rows)
        compress([pages[row]], target[row])

    def decode() -> None:
        row = next(rows)
        assert expand(coded[row], [target[row][:PAGE]])

    yield Result(f"{name}: ratio", PAGE / length, "x", "the bytes of the page", ratio)
    copied, compressed, expanded = median_times(ROUNDS, copy, code, decode)
    yield Result(f"{name}: compressing", copied / compressed, "x", f"memcpy {PAGE / copied / 1e9:.1f} GB/s", goal_in)
    yield Result(f"{name}: expanding", copied / expanded, "x", f"memcpy {PAGE / copied / 1e9:.1f} GB/s", goal_out)


def measure() -> Iterator[Result]:
    """Yields the results for each mode of blocks."""
    yield from measured("bfloat16, 3 bits", kv_page("bf16", PAGE), at_least(1.39), at_least(0.3), at_least(0.4))
    yield from measured("bfloat16, 4 bits", wide_page(), at_least(1.32), at_least(0.5), at_least(1.0))
    yield from measured("float16, 6 bits", kv_page("f16", PAGE), REPORTED, REPORTED, REPORTED)
    noise = np.random.default_rng(4).integers(0, 256, PAGE, np.uint8).tobytes()
    yield from measured("raw", noise, REPORTED, REPORTED, REPORTED)


if __name__ == "__main__":
    main("Compressing pages on one core", measure)
