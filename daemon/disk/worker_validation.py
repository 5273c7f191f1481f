"""Whether what a worker says makes sense: one that has lost its mind must not take the index with it."""

from __future__ import annotations

from typing import Final

import numpy as np

from pagetier.daemon.common.namespaces import wrong_space
from pagetier.shm.protocol import ProtocolError
from pagetier.tiers.base import KEY_BYTES
from pagetier.tiers.worker_protocol import HasRead, Holds, Opened, Report, Wrote

_MOST_FRAMES: Final = 1 << 40
_MOST_BYTES: Final = 1 << 48
_RESULTS: Final = frozenset(range(4))
_U32, _U64 = 4, 8


def check(report: Report) -> None:
    """Raises ProtocolError where the parts of a report do not fit together."""
    wrong = _wrong(report)
    if wrong:
        raise ProtocolError(f"{type(report).__name__}: {wrong}")


def _wrong(report: Report) -> str:
    match report:
        case Opened() if not 0 <= report.room <= _MOST_FRAMES:
            return f"a room of {report.room} frames"
        case Holds():
            return _wrong_pages(report) or next(filter(None, map(wrong_space, report.table)), "")
        case Wrote() if not set(report.stored) <= _RESULTS:
            return "what became of a page is not known"
        case HasRead() if report.first < 0 or not set(report.read) <= {0, 1} or len(report.damaged) % KEY_BYTES:
            return "pages that do not fit together"
        case _:
            return ""


def _wrong_pages(held: Holds) -> str:
    pages = len(held.keys) // KEY_BYTES
    lengths = tuple(map(len, (held.keys, held.sizes, held.stamps, held.spaces)))
    if lengths != (KEY_BYTES * pages, _U64 * pages, _U64 * pages, _U32 * pages):
        return f"arrays of {lengths} bytes"
    if pages and max(np.frombuffer(held.spaces, "<u4")) >= len(held.table):
        return "a namespace that it did not name"
    sizes = np.frombuffer(held.sizes, "<u8")
    if pages and not 0 < sizes.min() <= sizes.max() < _MOST_BYTES:
        return f"pages of {sizes.min()} to {sizes.max()} bytes"
    return ""
