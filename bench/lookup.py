"""Measures matches and reservations in an index of a million entries."""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from daemon_setup import Stage, settle
from full_index import ENTRIES, FRAME, SIZES, SPACE, all_keys, fill, find, some_of
from measure import REPORTED, Result, Unit, at_least, at_most, main, median_times, time_of
from pagetier.client import Client, FullAttention, Keys
from pagetier.client.adapters import GroupKeys
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.geometry import Geometry
from pagetier.shm.protocol import BUILD
from pagetier.shm.segments import SegmentRequest, take

SPAWN = get_context("spawn")


def find_groups(client: Client, keys: Keys) -> None:
    """Matches and releases one group once."""
    with client.match_groups([GroupKeys(FullAttention(SPACE.page_tokens), keys)]) as match:
        assert len(match) == len(keys)


def grouped(client: Client, keys: Keys) -> Iterator[Result]:
    """Measures a match of groups with one group, and mixing a namespace into an engine's own hashes."""
    # These are the keys of matching(), twice: the eviction that is measured later skips pages that were used.
    batches = iter([some_of(keys, 8192, seed) for seed in range(61)] * 2)
    find_groups(client, next(batches))
    plain, groups = median_times(60, lambda: find(client, next(batches)), lambda: find_groups(client, next(batches)))
    each = Unit.NS.value / 8192
    against = f"per page {groups * each:.0f} ns, and {plain * each:.0f} ns a match of the same"
    yield Result("match_groups_8192_over_match", groups / plain, "x", against, at_most(1.1))
    hashes = list(some_of(keys, 8192, 99))
    (mixed,) = median_times(60, lambda: SPACE.keys_of_hashes(hashes))
    yield Result(
        "keys_of_hashes_8192_ns_per_page", mixed * each, "ns", f"all of them: {mixed * 1e3:.2f} ms", at_most(49)
    )


def matching(client: Client, keys: Keys) -> Iterator[Result]:
    """Measures matches in one process."""
    batches = iter([some_of(keys, 8192, seed) for seed in range(61)])
    plain = {key: at for at, key in enumerate(keys)}
    batch = some_of(keys, 8192, 99)
    listed = list(batch)
    find(client, next(batches))
    (ours,) = median_times(60, lambda: find(client, next(batches)))  # not in turn: the dict would evict the CPU caches
    (theirs,) = median_times(60, lambda: [plain[key] for key in listed])
    ns = Unit.NS.value
    yield Result(
        "match_8192_ns_per_key",
        ours / 8192 * ns,
        "ns",
        f"a private Python dict of as many keys: {theirs / 8192 * ns:.0f} ns",
        at_most(100),
    )
    one = keys[7:8]
    key = one[0]

    def ours_100() -> None:
        for _ in range(100):
            find(client, one)

    ours, theirs = median_times(200, ours_100, lambda: [plain[key] for _ in range(100)])
    yield Result(
        "match_1_ns", ours / 100 * ns, "ns", f"a private Python dict: {theirs / 100 * ns:.0f} ns", at_most(1000)
    )


def prompt(client: Client) -> Iterator[Result]:
    """Measures a whole prompt: keys, match and release."""
    tokens = np.random.default_rng(3).integers(0, 32000, 131072, dtype=np.int32)
    fill(client, SPACE.keys(tokens))
    data = memoryview(tokens.tobytes())

    def bare() -> None:
        digest = SPACE.digest
        for at in range(0, len(data), 1024):
            digest = hashlib.sha256(digest + data[at : at + 1024]).digest()

    ours, theirs = median_times(60, lambda: find(client, SPACE.keys(tokens)), bare)
    yield Result(
        "match_128k_tokens_over_sha256",
        ours / theirs,
        "x",
        f"chained SHA-256 alone: {theirs * 1e3:.2f} ms; ours: {ours * 1e3:.2f} ms",
        at_most(1.2),
    )


def _match_loop(socket: Path, keys: Keys, batches: int, pipe: Connection) -> None:
    """Runs in a child process: matches for as many seconds as the pipe says, and returns the rate."""
    with Client(socket) as client:
        client.wait_attached(10)
        parts = [keys[at * 512 : (at + 1) * 512] for at in range(batches)]
        for part in parts:
            find(client, part)
        pipe.send(0.0)
        while seconds := pipe.recv():
            done, ends, at = 0, time.perf_counter() + seconds, 0
            while time.perf_counter() < ends:
                find(client, parts[at])
                at = (at + 1) % batches
                done += 1
            pipe.send(done / seconds)


def scaling(socket: Path, keys: Keys, name: str) -> Iterator[Result]:
    """Measures two processes relative to one. With one batch of keys both match the same pages."""
    same = name.endswith("same_keys")
    batches = 1 if same else 400
    mine = [some_of(keys[i * 500_000 : (i + 1) * 500_000], 512 * batches, 5) for i in (0, 0 if same else 1)]
    pipes, workers = [], []
    for part in mine:
        here, there = SPAWN.Pipe()
        workers.append(SPAWN.Process(target=_match_loop, args=(socket, part, batches, there)))
        workers[-1].start()
        pipes.append(here)
        here.recv()
    alone, both = [], []
    for _ in range(8):
        pipes[0].send(0.5)
        alone.append(pipes[0].recv())
        for pipe in pipes:
            pipe.send(0.5)
        both.append(sum(pipe.recv() for pipe in pipes))
    for pipe, worker in zip(pipes, workers, strict=True):
        pipe.send(0)
        worker.join()
    one, two = statistics.median(alone), statistics.median(both)
    against = f"one process: {one:.0f} matches of 512 keys a second; two: {two:.0f}"
    yield Result(name, two / one, "x", against, REPORTED if same else at_least(1.8))


def storing(client: Client, name: str, bound: float, fresh: int) -> Iterator[Result]:
    """Measures reserving and publishing 512 pages of one frame, without copying."""
    data = np.random.default_rng(fresh).bytes(KEY_BYTES * 512 * 101)
    batches = iter([Keys(SPACE, data[at : at + KEY_BYTES * 512]) for at in range(0, len(data), KEY_BYTES * 512)])

    def store() -> None:
        assert client.reserve(next(batches), FRAME).publish().stored == 512

    store()
    seconds = median_times(100, store)[0]
    yield Result(
        name, seconds / 512 * 1e6, "us", f"a batch of 512: {seconds * 1e3:.2f} ms, one message", at_most(bound)
    )


def _store_loop(socket: Path, pipe: Connection) -> None:
    """Runs in a child process: stores continuously until the pipe says stop."""
    with Client(socket, timeout=10) as client:
        client.wait_attached(10)
        rng = np.random.default_rng(77)
        pipe.send(0)
        while not pipe.poll():
            client.reserve(Keys(SPACE, rng.bytes(KEY_BYTES * 512)), FRAME).publish()


def beside(client: Client, socket: Path) -> Iterator[Result]:
    """Measures a small reservation while another client stores continuously, and what the slowest ones wait for."""
    data = np.random.default_rng(88).bytes(KEY_BYTES * (64 * 700 + 512 * 20))
    keys = Keys(SPACE, data)
    small = (keys[at : at + 64] for at in range(0, 64 * 700, 64))
    large = (keys[at : at + 512] for at in range(64 * 700, len(keys), 512))

    def ask() -> None:
        client.reserve(next(small), FRAME).publish()

    idle, batch = median_times(20, ask, lambda: client.reserve(next(large), FRAME).publish())
    here, there = SPAWN.Pipe()
    other = SPAWN.Process(target=_store_loop, args=(socket, there))
    other.start()
    here.recv()
    times = sorted(time_of(ask) for _ in range(600))
    here.send(0)
    other.join()
    busy, slow = statistics.median(times), times[len(times) * 99 // 100]
    yield Result("reserve_64_us", busy * 1e6, "us", f"without other clients: {idle * 1e6:.0f} us", at_most(300))
    against = f"one batch of 512 pages, as the other client stores: {batch * 1e6:.0f} us without others"
    yield Result("reserve_64_p99_us", slow * 1e6, "us", against)


_ATTACH = """
import sys, time
from pathlib import Path
from pagetier.client import Client
def anon():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
before, began = anon(), time.perf_counter()
client = Client(sys.argv[1])
assert client.wait_attached(10)
took = time.perf_counter() - began
time.sleep(1)
print(took, (anon() - before) / 1024)
client.close()
"""


def attaching(socket: Path) -> Iterator[Result]:
    """Measures the attachment of a new process."""
    runs = [
        subprocess.run([sys.executable, "-c", _ATTACH, str(socket)], capture_output=True, text=True, check=True)
        for _ in range(9)
    ]
    numbers = np.array([run.stdout.split() for run in runs], dtype=float)
    took, private = np.median(numbers, axis=0).tolist()
    yield Result("attach_ms", took * 1e3, "ms", "connection, three descriptors, mappings; new process", at_most(20))
    yield Result("attach_private_mb", private, "MB", "growth of RssAnon after a second", at_most(5))


def adopting(stage: Stage, geometry: Geometry) -> Iterator[Result]:
    """Kills a daemon and measures its successor's take-over, beside copying index and lock words once."""
    stage.kill()
    taken: list[float] = []
    pages = 0
    for _ in range(5):
        began = time.perf_counter()
        segments = take(SegmentRequest(stage.name, geometry, BUILD))
        taken.append(time.perf_counter() - began)
        pages = segments.owner.header().pages
        segments.release()
        del segments
    index = b"".join(Path(f"/dev/shm/{stage.name}.{kind}").read_bytes() for kind in ("index", "locks"))
    copy = time_of(lambda: bytearray(index))
    stage.start()
    yield Result(
        "adopt_ms",
        statistics.median(taken) * 1e3,
        "ms",
        f"{pages} pages; copying index and lock words once: {copy * 1e3:.0f} ms",
        at_most(500),
    )


def measure() -> Iterator[Result]:
    """Runs all measurements on one daemon."""
    geometry = Geometry(FRAME, ENTRIES, ENTRIES, 16)
    with Stage(**SIZES) as stage:
        with stage.client() as client:
            yield from storing(client, "store_512_us_per_page", 2, 11)
            keys = all_keys()
            fill(client, keys[: ENTRIES - 512 * 102])
            keys = keys[: ENTRIES - 512 * 102]
            settle()
            yield from matching(client, keys)
            yield from grouped(client, keys)
            yield from scaling(stage.socket, keys, "match_2_processes_over_1")
            yield from scaling(stage.socket, keys, "match_2_processes_over_1_same_keys")
            yield from attaching(stage.socket)
            yield from prompt(client)
            fill(client, all_keys()[-512 * 102 :])
            yield from storing(client, "store_512_evicting_us_per_page", 3, 12)
            yield from beside(client, stage.socket)
        yield from adopting(stage, geometry)
        stage.client().close()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parent))
    main("Matches and reservations, 1,000,000 entries", measure)
