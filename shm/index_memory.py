"""Allocates the memory of a new index, in parallel, so that none is missing later."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pagetier.shm._core import Owner, ShmError
from pagetier.shm.geometry import Geometry
from pagetier.shm.helper_threads import start_helpers

_SHARE_BYTES: Final = 32 << 20  # the kernel clears as much in the time of a hundred starts of a thread
_MOST_THREADS: Final = 16  # as many saturate a memory bus with clearing


def populate_index(owner: Owner, geometry: Geometry) -> None:
    """Allocates the index without the ring of events, whose memory is allocated for the first reader.

    Raises:
        ShmError: Memory is short. No thread allocates any more.
    """
    shares = share_count(sum(geometry.sizes[:2]))
    left = iter(range(shares))

    def populate() -> None:
        for share in left:
            owner.populate_index(geometry.at_events, geometry.events_bytes, share, shares)

    try:
        with ThreadPoolExecutor(shares, "pagetier-index") as threads:
            helpers = start_helpers(threads, populate, shares - 1)
            populate()
            for helper in helpers:
                helper.result()
    except OSError as error:
        too_old = " (Linux 5.14 can)" if error.errno == errno.EINVAL else ""
        raise ShmError(f"cannot allocate the memory of the index: {error.strerror}{too_old}") from error


def share_count(nbytes: int) -> int:
    """Returns the number of threads for so many bytes: one for each core, unless their shares would be small."""
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)), nbytes // _SHARE_BYTES))
