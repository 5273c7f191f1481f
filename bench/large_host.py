"""Measures an index of 10 million pages over a sparse arena of 2.4 TiB: making, adoption and the memory beside it.

The arena has sizes and no bytes, so that a small host can run this; index and lock words are real (about 3 GiB).
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from measure import Result, main, time_of
from pagetier.daemon.host.huge_pages import huge_page_report
from pagetier.shm._core import KEY_BYTES, Session, answer_columns, page_requests
from pagetier.shm.geometry import Geometry
from pagetier.shm.message_codec import LENGTH, pack, read_reserved
from pagetier.shm.protocol import BUILD, Reserve, Space
from pagetier.shm.segments import SegmentRequest, Segments, take

ENTRIES = int(os.environ.get("BENCH_ENTRIES", "10000000"))
FRAME = 256 << 10
BATCH = 8192
FILLED = 0.99
GEOMETRY = Geometry(FRAME, ENTRIES, ENTRIES, 16)
GIB = 1 << 30
HOUR_NS = 3600 * 10**9


def own_bytes(what: str) -> int:
    """Returns a number of /proc/self/status in bytes: RssAnon is private memory, VmPTE the page tables."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def times_of(action: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds that one call takes, and its CPU time."""
    began = time.process_time()
    seconds = time_of(action)
    return seconds, time.process_time() - began


def fill(segments: Segments) -> None:
    """Stores pages of one frame without writing their bytes, as one engine; then this engine leaves."""
    owner = segments.owner
    label = Space(bytes(KEY_BYTES), "bench", 256)
    space = owner.space(label.digest, label.name, label.page_tokens, label.window, label.group)
    slot = owner.attach(os.getpid(), os.geteuid(), 0, 1, "filler")
    session = session_of(segments, slot)
    sizes = FRAME.to_bytes(8, "little") * BATCH
    rng = np.random.default_rng(1)
    for _ in range(int(ENTRIES * FILLED) // BATCH):
        pages = page_requests(rng.bytes(KEY_BYTES * BATCH), sizes)
        response, *_ = owner.reserve(slot, space, HOUR_NS, 0, pack(Reserve(1, label, 0, 1, pages)))
        granted = answer_columns(read_reserved(response[LENGTH.size :]).pages)
        session.publish(granted.entries, granted.serials, 0)
        owner.settle()
    assert session.retire()
    owner.reap(slot)


def session_of(segments: Segments, slot: int) -> Session:
    """Maps the segments as an engine does."""
    index, locks, arena = segments.descriptors()
    try:
        return Session(index, locks, arena, slot)
    finally:
        for descriptor in (index, locks, arena):
            os.close(descriptor)


def measure() -> Iterator[Result]:
    """Makes the segments, fills them and adopts them."""
    request = SegmentRequest(f"pagetier-bench-{secrets.token_hex(4)}", GEOMETRY, BUILD)
    taken: list[Segments] = []
    try:
        seconds, processor = times_of(lambda: taken.append(take(request)))
        arena = f"an arena of {GEOMETRY.sizes[2] / GIB:.0f} GiB"
        yield Result("make_s", seconds, "s", f"{ENTRIES:,} entries, {arena}; {processor:.2f} s of CPU")
        shared = sum(GEOMETRY.sizes[:2])
        yield Result("index_gib", shared / GIB, "GiB", f"{shared / ENTRIES:.0f} bytes an entry, with its frame")
        fill(taken[0])
        yield from adopted(request, taken)
        yield divided(taken[0])
    finally:
        for segments in taken:
            segments.remove()


def divided(segments: Segments) -> Result:
    """Puts a quota in force, as a reload does: pages are counted and listed again."""
    quotas = array("d", [0.0, 1.0, 0.0, 1.0, 0.1, 0.5, 0.0, 1.0])  # of memory and disk, each least and most
    seconds, processor = times_of(lambda: segments.owner.set_quotas(quotas, ["bench"]))
    assert segments.owner.tenants()[1][0] > 0
    return Result("quotas_s", seconds, "s", f"a quota is put in force; {processor:.2f} s of CPU")


def adopted(request: SegmentRequest, taken: list[Segments]) -> Iterator[Result]:
    """Lets the segments in `taken` go and adopts them, three times; the last ones stay there."""
    pages, times, private = taken[0].owner.header().pages, list[tuple[float, float]](), 0
    for _ in range(3):
        taken.pop().release()
        before = own_bytes("RssAnon")
        times.append(times_of(lambda: taken.append(take(request))))
        private = own_bytes("RssAnon") - before
    owner = taken[0].owner
    assert owner.header().pages == pages
    seconds, processor = map(statistics.median, zip(*times, strict=True))
    against = f"{pages:,} pages; {processor:.2f} s of CPU; {huge_page_report(owner).text}"
    yield Result("adopt_s", seconds, "s", against)
    yield Result("adopt_private_mib", private / 2**20, "MiB", "private memory of the daemon for these pages")
    tables = own_bytes("VmPTE") / 2**20
    yield Result("page_tables_mib", tables, "MiB", "of this process, with index and lock words")


if __name__ == "__main__":
    main("A large index, with an arena that has no bytes", measure)
