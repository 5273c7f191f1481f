"""Measures what compression is worth to hits of a fleet whose store is reached through a link of a given rate.

    PYTHONPATH=tests/harness .engines/fleet/bin/python bench/limited_store.py --json

Two hosts share one SeaweedFS through one link, each with its own prefix and key; one compresses, the other one does
not. The same pages of real keys and values are read by both in turn. It takes about three minutes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from fleet_scene import FleetScene
from kv_pages import kv_page
from limited_link import LimitedLink
from measure import REPORTED, Result, at_least, machine
from median_interval import median_interval
from pagetier.client import FullAttention, Keys, Namespace
from pagetier.client.adapters import GroupKeys
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Outgoing
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from results_file import row_of, run_command
from store_servers import ACCESS_KEY, BUCKET, SECRET_KEY, s3_server, with_parameters

MIB: Final = 1 << 20
RESULTS: Final = Path(__file__).parent / "results" / "limited-store.json"
PAGE, PAGES = 2 * MIB, 16
RATES_MB: Final = (10, 25, 50, 100, 400)
ROUNDS: Final = 11
PATIENCE_S: Final = 60.0
NAMESPACE: Final = Namespace(model="bench", dtype="bfloat16", page_tokens=16)
SPACE: Final = Space(NAMESPACE.digest, NAMESPACE.name, 16)


class Host:
    """A daemon of a fleet of its own behind the link, and pages that its store has."""

    def __init__(self, link: LimitedLink, compress: Literal["auto", "off"], key: Path, stack: ExitStack) -> None:
        url = f"s3://{BUCKET}/hosts?endpoint=http://127.0.0.1:{link.port}"
        self._link, self.received = link, 0
        options = FleetOptions(url=url, prefix=compress, key_file=str(key), timeout_s=PATIENCE_S, compress=compress)
        arena = ("--arena-size", "256MiB", "--set", "arena.frame_size=1MiB", "--set", "remote.write=never")
        limits = ("--set", f"remote.timeout={PATIENCE_S:g}s", "--set", f"remote.ask_timeout={PATIENCE_S:g}s")
        more = (*arena, *limits, "--set", f"remote.key_file={key}")
        self._scene = stack.enter_context(FleetScene(with_parameters(url, compress=compress), compress, *more))
        self._client = stack.enter_context(self._scene.client())
        self._scene.wait_open()
        self._keys = Keys(NAMESPACE, np.random.default_rng(len(compress)).bytes(KEY_BYTES * PAGES))
        fleet = open_fleet(options)
        stack.callback(fleet.close)
        written = fleet.write([], [self._page(number) for number in range(PAGES)])
        assert all(written.stored), written.reasons

    def _page(self, number: int) -> Outgoing:
        content = memoryview(kv_page("bf16", PAGE, number))
        frames = [content[at : at + MIB] for at in range(0, PAGE, MIB)]
        return Outgoing(self._keys[number], SPACE, PAGE, 0, frames)

    def hit(self) -> float:
        """Finds and reads the pages into an empty arena. Returns the seconds."""
        self._scene.flush()
        before, began = self._link.received, time.perf_counter()
        match = self._client.find_groups([GroupKeys(FullAttention(NAMESPACE.page_tokens), self._keys)])
        location = self._client.locate(match)
        assert location.wait(PATIENCE_S)
        hit = location.longest_hit()
        assert hit is not None and self._client.prefetch(hit, PATIENCE_S).wait(PATIENCE_S) == PAGES
        taken = time.perf_counter() - began
        self.received = self._link.received - before
        return taken


def results(link: LimitedLink, plain: Host, compressed: Host, rate: int) -> Iterator[Result]:
    """Yields how much faster hits are, and how many fewer bytes they take."""
    link.limit(rate * 1_000_000)
    times: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        sides = (plain, compressed)[:: -1 if number % 2 else 1]
        taken = {side: side.hit() for side in sides}
        times.append((taken[plain], taken[compressed]))
    ratios = [before / after for before, after in times]
    low, high = median_interval(ratios)
    before, after = (1e3 * statistics.median(side) for side in zip(*times, strict=True))
    against = f"plain: {before:,.0f} ms; compressed: {after:,.0f} ms; 95 %: {low:.2f} to {high:.2f}"
    goal = at_least(1.39) if rate == RATES_MB[0] else REPORTED
    yield Result(f"hit_{rate}_mb_per_s", statistics.median(ratios), "x", against, goal)


def measure() -> Iterator[Result]:
    """Yields the results of each rate."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pagetier-bench-")))
        link = stack.enter_context(LimitedLink(stack.enter_context(s3_server(folder)).port))
        key = folder / "fleet.key"
        key.write_bytes(os.urandom(32))
        key.chmod(0o400)
        link.limit(RATES_MB[-1] * 1_000_000)  # or pages might be written faster than they are compressed
        plain, compressed = (Host(link, compress, key, stack) for compress in ("off", "auto"))
        for side in (plain, compressed):
            side.hit()  # what a host does once
        ours, theirs = compressed.received / 1e6, plain.received / 1e6
        against = f"of {PAGES * PAGE / 1e6:.1f} MB, with HTTP: plain {theirs:.1f} MB; compressed {ours:.1f} MB"
        yield Result("bytes", theirs / ours, "x", against, at_least(1.39))
        for rate in RATES_MB:
            yield from results(link, plain, compressed, rate)


def record() -> dict[str, Any]:
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    return {"measured": True, "device": machine(), "results": [row_of(result) for result in measure()]}


if __name__ == "__main__":
    run_command(__doc__, RESULTS, record)
