"""Measures how fast pages go to disk and come back, relative to the device without pagetier."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import get_args

import numpy as np

from disk_devices import devices
from disk_setup import QuietScene, Scene, cached_bytes, data_files, until
from measure import REPORTED, Result, at_least, at_most, main, time_of
from pagetier.client import Client, Keys, Namespace
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Outgoing
from pagetier.tiers.capacity import StoreName, frames_under
from pagetier.tiers.worker.open_store import store_class
from raw_device import BLOCK, clear, read_direct, write_direct

MIB = 1 << 20
GIB = 1 << 30
PAGE = 8 * MIB
TOTAL = int(os.environ.get("BENCH_DISK_MIB", "4096")) * MIB
FRAME = int(os.environ.get("BENCH_FRAME_KIB", "1024")) << 10
PARTS = os.environ.get("BENCH_DISK_PARTS", "sizing,moving,matching,starting,devices").split(",")
STORES: tuple[StoreName, ...] = tuple(
    store for store in get_args(StoreName) if store in os.environ.get("BENCH_STORES", "lmdb,files").split(",")
)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
ARENA = TOTAL + TOTAL // 8
FETCH = 32
"""Pages requested at once: a prompt of some ten thousand tokens."""
MILLION = 1_000_000
OF_DEVICE = 0.85 if FRAME >= MIB else 0.7
"""The goal of writing into an empty tier, as a share of the device's rate."""
SPACE = Namespace(model="bench", dtype="none", page_tokens=16)


def sizing(folder: Path, content: mmap.mmap, store: StoreName) -> Iterator[Result]:
    """Computes what frames of 4 KiB cost."""
    del folder, content
    cost = 20 * GIB / (4096 * frames_under(store, 20 * GIB, 4, 4096))
    yield Result(f"{store}_cost_of_4k_frames", cost, "x", "their size, at a cap of 20 GiB", at_most(1.3))


def moved_by(folder: Path, store: StoreName, cap: int, *more: str) -> Scene:
    """Returns a daemon with room for TOTAL bytes in memory and `cap` bytes on disk."""
    arena = ("--arena-size", str(ARENA), "--set", f"arena.frame_size={FRAME}")
    return QuietScene(folder, *arena, "--set", f"disk.store={store}", "--disk-size", str(cap), *more)


def keys_of(series: int) -> Keys:
    """Returns the keys of TOTAL bytes of pages."""
    return Keys(SPACE, np.random.default_rng(series).bytes(KEY_BYTES * (TOTAL // PAGE)))


def fill(client: Client, keys: Keys, content: mmap.mmap) -> None:
    """Stores pages, each as a whole."""
    pages = np.frombuffer(content, dtype=np.uint8)[: 8 * PAGE].reshape(8, PAGE)
    for at in range(0, len(keys), 8):
        assert client.store(keys[at : at + 8], pages[: len(keys[at : at + 8])]).stored == len(keys[at : at + 8])


def read_back(client: Client, keys: Keys) -> None:
    """Brings pages into memory, some at a time, and releases them."""
    for at in range(0, len(keys), FETCH):
        some = keys[at : at + FETCH]
        assert client.prefetch(some, 60).wait(60) == len(some)


def moving(folder: Path, content: mmap.mmap, store: StoreName) -> Iterator[Result]:
    """Measures writing, replacing and reading, each in turn with the bare device."""
    times: dict[str, list[float]] = {name: [] for name in ("write", "replace", "bare_write", "bare_replace")}
    times |= {name: [] for name in ("cold", "warm", "bare_read", "bare_read_4", "memcpy", "cpu")}
    cached = max(_one_round(folder, content, store, times) for _ in range(ROUNDS))
    low = {name: statistics.median(taken) for name, taken in times.items()}
    rate = {name: TOTAL / seconds / 1e9 for name, seconds in low.items()}
    what = f"O_DIRECT, {BLOCK // MIB} MiB blocks, synced"
    device = f"{what}, a new file: {rate['bare_write']:.2f} GB/s"
    ratio = low["bare_write"] / low["write"]
    yield Result(f"{store}_write_over_odirect", ratio, "x", _against(rate["write"], device), at_least(OF_DEVICE))
    device = f"{what}, over the same file: {rate['bare_replace']:.2f} GB/s"
    ratio = low["bare_replace"] / low["replace"]
    yield Result(f"{store}_replace_over_odirect", ratio, "x", _against(rate["replace"], device), at_least(0.85))
    device = f"O_DIRECT, one thread: {rate['bare_read']:.2f} GB/s; four threads: {rate['bare_read_4']:.2f}"
    ratio = low["bare_read_4"] / low["cold"]
    yield Result(f"{store}_read_cold_over_odirect", ratio, "x", _against(rate["cold"], device), at_least(0.9))
    what = _against(rate["warm"], f"memcpy: {rate['memcpy']:.2f} GB/s")
    yield Result(f"{store}_read_again_over_memcpy", low["memcpy"] / low["warm"], "x", what)
    what = "CPU time of the worker for each GB written, checksums included"
    yield Result(f"{store}_cpu_per_gb", low["cpu"] / (TOTAL / 1e9), "s", what, at_most(0.35))
    what = f"of the tier's files in the page cache after {2 * TOTAL / GIB:g} GiB of writing"
    yield Result(f"{store}_page_cache_mib", cached / MIB, "MiB", what, at_most(64))


def _one_round(folder: Path, content: mmap.mmap, store: StoreName, times: dict[str, list[float]]) -> int:
    """Returns how many bytes of frames were in the page cache after writing."""
    shutil.rmtree(folder / "tier", ignore_errors=True)
    bare = folder / "bare"
    cap = int(TOTAL * 1.1) + 256 * MIB
    with moved_by(folder, store, cap) as scene, scene.client() as client:
        until("disk", scene.disk_open)
        second = keys_of(2)
        fill(client, keys_of(1), content)
        clear(bare)
        times["bare_write"].append(time_of(lambda: write_direct(bare, content, TOTAL)))
        before = scene.worker_cpu()
        times["write"].append(time_of(scene.ask_saved))
        times["cpu"].append(scene.worker_cpu() - before)
        scene.flush("memory")
        times["bare_replace"].append(time_of(lambda: write_direct(bare, content, TOTAL)))
        scene.wait_until_nothing_is_saved()
        fill(client, second, content)
        times["replace"].append(time_of(scene.ask_saved))
        cached = _cached(scene.disk, store)
        scene.flush("memory")
        held = _on_disk(client, second)
        scene.drop_cache()
        times["bare_read"].append(time_of(lambda: read_direct(bare, TOTAL, 1)) * len(held) / len(second))
        times["cold"].append(time_of(lambda: read_back(client, held)) * len(second) / len(held))
        times["bare_read_4"].append(time_of(lambda: read_direct(bare, TOTAL, 4)))
        scene.flush("memory")
        _warm(scene.disk)
        times["warm"].append(time_of(lambda: read_back(client, held)) * len(second) / len(held))
        times["memcpy"].append(time_of(lambda: _memcpy(content, TOTAL)))
    bare.unlink()
    return cached


def _cached(disk: Path, store: StoreName) -> int:
    """Returns how much of the files is in the page cache, without those of the files store that have records alone."""
    return sum(cached_bytes(path) for path in data_files(disk) if store == "lmdb" or path.name != "data.mdb")


def _on_disk(client: Client, keys: Keys) -> Keys:
    """Returns the pages that are on disk; those that were written last are."""
    there = [key for key in keys if client.match(Keys(SPACE, key)).available_pages]
    assert len(there) > len(keys) * 0.9, f"{len(there)} of {len(keys)} pages are on disk"
    return Keys(SPACE, b"".join(there))


def _warm(disk: Path) -> None:
    """Reads the files into the kernel's page cache."""
    for file in data_files(disk):
        with file.open("rb", buffering=0) as source:
            while source.read(16 * MIB):
                pass


def _memcpy(content: mmap.mmap, nbytes: int) -> None:
    """Copies between memory that is in no cache."""
    half = len(content) // 2
    address = np.frombuffer(content, dtype=np.uint8).ctypes.data
    for at in range(0, nbytes, PAGE):
        ctypes.memmove(address + half + at % half, address + at % half, PAGE)


def _against(ours: float, theirs: str) -> str:
    return f"{theirs}; ours: {ours:.2f} GB/s"


def matching(folder: Path, content: mmap.mmap, store: StoreName) -> Iterator[Result]:
    """Measures matches of 512 keys beside a saturated disk worker, and beside an idle one."""
    shutil.rmtree(folder / "tier", ignore_errors=True)
    with moved_by(folder, store, TOTAL // 2, "--set", "disk.write=through") as scene, scene.client() as client:
        until("disk", scene.disk_open)
        hot = Keys(SPACE, np.random.default_rng(9).bytes(KEY_BYTES * 512))
        client.reserve(hot, 4096).publish()
        scene.ask_saved()
        idle: list[float] = []
        busy: list[float] = []
        halt = threading.Event()
        other = threading.Thread(target=_store_all_the_time, args=(scene.socket, content, halt))
        with client.match(hot):  # pinned, so that they stay however much is stored
            _sample(client, hot, idle, 3.0)
            other.start()
            time.sleep(1.0)
            before = scene.header().disk_written_bytes
            _sample(client, hot, busy, 6.0)
            written = scene.header().disk_written_bytes - before
            halt.set()
            other.join()
            scene.wait_quiet()
            _sample(client, hot, idle, 3.0)
    quiet, loud = (float(np.percentile(taken, 99)) for taken in (idle, busy))
    yield Result(
        f"{store}_match_p99_while_flushing_over_idle",
        loud / quiet,
        "x",
        f"idle p99: {quiet * 1e6:.0f} us; beside {written / 6e9:.2f} GB/s of writing: {loud * 1e6:.0f} us",
        at_most(1.5),
    )


def _sample(client: Client, keys: Keys, taken: list[float], seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.perf_counter()
        match = client.match(keys)
        match.release()
        taken.append(time.perf_counter() - began)
        assert len(match) == len(keys)
        time.sleep(0.0005)


def _store_all_the_time(socket: Path, content: mmap.mmap, halt: threading.Event) -> None:
    """Stores new pages without their bytes: the disk is measured, not the copy into memory."""
    with Client(socket, timeout=10) as client:
        client.wait_attached(10)
        series = 100
        while not halt.is_set():
            series += 1
            client.reserve(Keys(SPACE, np.random.default_rng(series).bytes(KEY_BYTES * 4)), PAGE).publish()
            time.sleep(0.01)


def starting(folder: Path, content: mmap.mmap, store: StoreName) -> Iterator[Result]:
    """Measures the start of a daemon with a million pages on disk."""
    del content
    frame = 4096
    disk = folder / "tier"
    shutil.rmtree(disk, ignore_errors=True)
    cap = 12 * GIB
    _make_a_million(disk, store, cap, frame)
    taken = [time_of(lambda: _list_all(disk, store, cap, frame)) for _ in range(ROUNDS)]
    what = "opening the tier and listing its pages, without a daemon"
    yield Result(f"{store}_open_1m_pages_s", statistics.median(taken), "s", what, at_most(2))
    taken = [_start_once(folder, store, cap, frame) for _ in range(ROUNDS)]
    what = "from exec, interpreter included, to the first match"
    yield Result(f"{store}_start_1m_pages_s", statistics.median(taken), "s", what, at_most(3))


def _start_once(folder: Path, store: StoreName, cap: int, frame: int) -> float:
    index = ("--arena-size", "64MiB", "--set", f"arena.frame_size={frame}", "--set", "index.entries=1100000")
    scene = Scene(folder, *index, "--set", f"disk.store={store}", "--disk-size", str(cap))
    began = time.perf_counter()
    with scene:
        until("socket", scene.socket.exists)
        until("a million pages", lambda: scene.disk_open(MILLION))
        return time.perf_counter() - began


def _list_all(disk: Path, store: StoreName, cap: int, frame: int) -> None:
    with closing(store_class(store)(disk, cap, frame, 4)) as tier:
        assert sum(len(some) for some in tier.contents()) == MILLION


def _make_a_million(disk: Path, store: StoreName, cap: int, frame: int) -> None:
    tier = store_class(store)(disk, cap, frame, 4)
    space = Space(SPACE.digest, SPACE.name, SPACE.page_tokens)
    content = memoryview(mmap.mmap(-1, frame))
    rows = np.random.default_rng(4).bytes(KEY_BYTES * MILLION)
    for at in range(0, MILLION, 4096):
        last = min(at + 4096, MILLION)
        pages = [
            Outgoing(rows[KEY_BYTES * i : KEY_BYTES * (i + 1)], space, frame, i, [content]) for i in range(at, last)
        ]
        assert all(tier.write([], pages).stored)
    tier.close()


def measure() -> Iterator[Result]:
    """Runs all measurements, in a folder beside this file since /tmp may be memory."""
    folder = Path(tempfile.mkdtemp(prefix=".disk-", dir=os.environ.get("BENCH_DISK_FOLDER", Path(__file__).parent)))
    content = mmap.mmap(-1, GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    content[:] = np.random.default_rng(6).bytes(64 * MIB) * 16
    try:
        yield Result("frame_kib", FRAME / 1024, "KiB", f"pages of {PAGE // MIB} MiB, {TOTAL / GIB:g} GiB", REPORTED)
        runs = {"sizing": sizing, "moving": moving, "matching": matching, "starting": starting}
        for part, store in itertools.product(runs, STORES):
            if part in PARTS:
                yield from runs[part](folder, content, store)
        if "devices" in PARTS:
            yield from devices(folder, content, ROUNDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main("Pages between memory and disk", measure)
