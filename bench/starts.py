"""Measures the start of a daemon over many pages on disk, against a bare scan of the same records in LMDB.

The pages have records and no bytes (`sparse_tier.py`). `BENCH_START_PAGES=100000 python bench/starts.py` takes others.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import msgspec

from disk_setup import Scene, until
from measure import Result, at_most, main, time_of
from pagetier.client import Client, Keys, Namespace
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.capacity import StoreName
from sparse_tier import FRAME, bare_scan, cap_of, make_sparse_tier

PAGES: Final = tuple(map(int, os.environ.get("BENCH_START_PAGES", "100000,1000000").split(",")))
ROUNDS: Final = int(os.environ.get("BENCH_ROUNDS", "3"))
SPACE: Final = Namespace(model="bench", dtype="none", page_tokens=16)
_PATIENCE_S: Final = 120.0


class Start(msgspec.Struct):
    """What one start took, in seconds from exec.

    Attributes:
        stored: An engine has stored a page in memory and matched it.
        oldest: The page that was used longest ago is found on disk.
        newest: The page that was used last is found on disk.
        is_open: All pages are known, and the disk is written.
        slowest: The slowest store in memory between `stored` and `is_open`.
        daemon_cpu: CPU time of the daemon.
        worker_cpu: CPU time of the disk worker.
    """

    stored: float = 0.0
    oldest: float = 0.0
    newest: float = 0.0
    is_open: float = 0.0
    slowest: float = 0.0
    daemon_cpu: float = 0.0
    worker_cpu: float = 0.0


def start_once(folder: Path, store: StoreName, keys: Keys) -> Start:
    """Starts a daemon over the tier in a folder, and stores pages until it knows all pages on disk."""
    pages, start = len(keys), Start()
    index = ("--arena-size", "256MiB", "--set", f"arena.frame_size={FRAME}", "--set", f"index.entries={pages * 5 // 4}")
    lazy = ("--set", "arena.prefault=lazy", "--set", f"disk.store={store}")
    # An installed package has bytecode; the first start of a benchmark writes it.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    scene = Scene(folder, *index, *lazy, "--disk-size", str(cap_of(pages)), **bytecode)
    began = time.perf_counter()
    with scene:
        until("socket", scene.socket.exists)
        with scene.client() as client:
            _store_once(client)
            start.stored = time.perf_counter() - began
            while not start.is_open and time.perf_counter() - began < _PATIENCE_S:
                start.slowest = max(start.slowest, time_of(lambda: _store_once(client)))
                start.oldest = start.oldest or _when_found(client, keys[:1], began)
                start.newest = start.newest or _when_found(client, keys[pages - 1 :], began)
                if scene.disk_open(pages):
                    start.is_open = time.perf_counter() - began
                time.sleep(0.002)
        start.daemon_cpu, start.worker_cpu = _cpu(scene.pid), scene.worker_cpu()
    return start


def _store_once(client: Client) -> None:
    keys = Keys(SPACE, os.urandom(KEY_BYTES))
    client.reserve(keys, FRAME).publish()
    with client.match(keys) as match:
        assert len(match) == 1


def _when_found(client: Client, keys: Keys, began: float) -> float:
    """Returns when the page was found on disk or in memory; 0 if it is unknown."""
    with client.match(keys) as match:
        return time.perf_counter() - began if match.available_pages else 0.0


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measured(folder: Path, store: StoreName, pages: int) -> Iterator[Result]:
    tier = folder / "tier"
    shutil.rmtree(tier, ignore_errors=True)
    keys = Keys(SPACE, make_sparse_tier(tier, store, pages, Space(SPACE.digest, SPACE.name, SPACE.page_tokens)))
    bare, starts = [], []
    for _ in range(ROUNDS):
        bare.append(time_of(lambda: bare_scan(tier)))
        starts.append(start_once(folder, store, keys))
    low = {name: statistics.median(getattr(start, name) for start in starts) for name in Start.__struct_fields__}
    scan = statistics.median(bare)
    name = f"{store}_{pages}"
    cpu = f"CPU time: daemon {low['daemon_cpu']:.2f} s, worker {low['worker_cpu']:.2f} s"
    yield Result(f"{name}_stored_s", low["stored"], "s", "from exec to a page stored and matched in memory")
    yield Result(f"{name}_slowest_store_ms", 1e3 * low["slowest"], "ms", "while the tier is being read", at_most(100))
    yield Result(f"{name}_oldest_match_s", low["oldest"], "s", "from exec to a match of the oldest page on disk")
    against = f"a scan of the records: {scan:.3f} s; from exec to a match of the newest page: {low['newest']:.2f} s"
    yield Result(f"{name}_newest_over_scan", low["newest"] / scan, "x", against, at_most(3))
    against = f"the same scan; from exec until the tier is open: {low['is_open']:.2f} s; {cpu}"
    yield Result(f"{name}_open_over_scan", low["is_open"] / scan, "x", against)


def measure() -> Iterator[Result]:
    """Runs all measurements, in a folder beside this file since /tmp may be memory."""
    folder = Path(tempfile.mkdtemp(prefix=".starts-", dir=os.environ.get("BENCH_DISK_FOLDER", Path(__file__).parent)))
    try:
        for store in get_args(StoreName):
            for pages in PAGES:
                yield from _measured(folder, store, pages)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main("Starts over many pages on disk", measure)
