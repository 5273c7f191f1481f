"""Pages of real keys and values; see kv_sample/README.md."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_SAMPLE = Path(__file__).parent / "kv_sample"


def kv_page(dtype: Literal["bf16", "f16"], size: int, number: int = 0) -> bytes:
    """Returns a page of this size. Pages of other numbers have other bytes."""
    sample = (_SAMPLE / f"gemma3_270m.{dtype}").read_bytes()
    begin = 512 * number % len(sample)  # a token of 256 channels
    return (sample[begin:] + sample * (size // len(sample) + 1))[:size]
