"""Measures how fast pages move between the arena and a fleet's store, relative to the store's own client."""

from __future__ import annotations

import mmap
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from fleet_scene import BareClient, BareMooncake, BareS3, FleetScene, pause
from measure import Result, at_least, at_most, machine, median_times, time_of
from pagetier.client import Client, FullAttention, GroupMatch, Keys, Namespace
from pagetier.client.adapters import GroupKeys
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.tiers.base import Outgoing, PageName
from pagetier.tiers.fleet.objects import HEADER_BYTES, object_name
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker.fleet_worker import READERS
from pagetier.tiers.worker_protocol import FleetOptions
from results_file import row_of, run_command
from store_servers import ACCESS_KEY, SECRET_KEY, MooncakeServers, S3Server, mooncake_servers, s3_server

MIB = 1 << 20
RESULTS = Path(__file__).parent / "results" / "fleet.json"
TOTAL = 64 * MIB
SIZES = (2, 8, 32)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
QUESTIONS = 200
PUTS = 4
"""How many puts the worker has running at once."""
SAMPLE_S = 3.0
LONG_S = 30.0
NAMESPACE = Namespace(model="bench", dtype="none", page_tokens=16)
SPACE = Space(NAMESPACE.digest, NAMESPACE.name, 16)
GOALS = {"plain": 0.85, "key": 0.75}


class Bench:
    """A store, a daemon and a fleet in this process for puts, and the store's own client."""

    def __init__(self, server: S3Server | MooncakeServers, codec: str, stack: ExitStack, folder: Path) -> None:
        self.kind = "s3" if isinstance(server, S3Server) else "mooncake"
        self.codec, self.prefix = codec, f"bench-{codec}"
        self._memory = mmap.mmap(-1, TOTAL + 64 * MIB)
        self._content = np.random.default_rng(6).bytes(32 * MIB)
        self._series = 0
        path = key_file(folder) if codec == "key" else ""
        options = FleetOptions(
            url=server.url, prefix=self.prefix, key_file=path, trusted=True, timeout_s=LONG_S, buffers=256 * MIB
        )
        self.fleet = open_fleet(options)
        stack.callback(self.fleet.close)
        self.bare: BareClient = BareS3(server) if isinstance(server, S3Server) else BareMooncake(server, self._memory)
        more = ["--set", f"remote.key_file={path}"] if path else []
        arena = ("--arena-size", "512MiB", "--set", "arena.frame_size=1MiB", "--set", "remote.write=never")
        limits = ("--set", f"remote.timeout={LONG_S:g}s", "--set", "remote.ask_timeout=5s")
        self.scene = stack.enter_context(FleetScene(server.url, self.prefix, *arena, *limits, *more))
        self.client = stack.enter_context(self.scene.client())
        self.scene.wait_open()

    def keys(self, count: int) -> Keys:
        """Returns new keys."""
        self._series += 1
        return Keys(NAMESPACE, np.random.default_rng([self._series, len(self.codec)]).bytes(KEY_BYTES * count))

    def names(self, keys: Keys, prefix: str = "") -> list[str]:
        """Returns the names of the objects."""
        return [object_name(prefix or self.prefix, PageName(NAMESPACE.digest, key)) for key in keys]

    def pages(self, keys: Keys, size: int) -> list[Outgoing]:
        """Returns pages to write."""
        content = memoryview(self._content)
        frames = [content[at : at + MIB] for at in range(0, size, MIB)]
        return [Outgoing(key, SPACE, size, 0, frames) for key in keys]

    def put(self, keys: Keys, size: int) -> None:
        """Writes pages as the worker does."""
        written = self.fleet.write([], self.pages(keys, size))
        assert all(written.stored) and not written.present, written.reasons

    def put_bare(self, keys: Keys, size: int) -> None:
        """Writes as many objects with the store's own client."""
        self._at_once(PUTS, self.bare.put, self.names(keys, f"bare-{self.codec}"), size)

    def read(self, keys: Keys) -> float:
        """Reads pages into an empty arena. Returns the seconds, without the question."""
        self.scene.flush()
        location = self.client.locate(self.missed(keys))
        location.wait(LONG_S)
        hit = location.longest_hit()
        assert hit is not None and hit.tokens == len(keys) * NAMESPACE.page_tokens
        began = time.perf_counter()
        assert self.client.prefetch(hit, LONG_S).wait(LONG_S) == len(keys)
        return time.perf_counter() - began

    def missed(self, keys: Keys) -> GroupMatch:
        """Returns a match of pages that this host does not have."""
        match = self.client.find_groups([GroupKeys(FullAttention(NAMESPACE.page_tokens), keys)])
        assert not match.available_tokens
        return match

    def get_bare(self, keys: Keys, size: int) -> None:
        """Reads the objects of the pages with the store's own client."""
        self._at_once(READERS, self.bare.get, self.names(keys), size)

    def remove(self, keys: Keys) -> None:
        """Makes room in Mooncake."""
        if isinstance(self.bare, BareMooncake):
            self.bare.remove([*self.names(keys), *self.names(keys, f"bare-{self.codec}")])

    def _at_once(self, threads: int, call: Callable[[str, memoryview], None], names: list[str], size: int) -> None:
        nbytes, memory = size + HEADER_BYTES, memoryview(self._memory)
        parts = [memory[at * nbytes : (at + 1) * nbytes] for at in range(len(names))]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(call, names, parts))


def key_file(folder: Path) -> str:
    """Returns a new file with a fleet key."""
    path = folder / "fleet.key"
    path.unlink(missing_ok=True)
    path.write_bytes(os.urandom(32))
    path.chmod(0o400)
    return str(path)


def moving(bench: Bench) -> Iterator[Result]:
    """Measures gets and puts, each in turn with the store's own client; the first round warms up."""
    for mib in SIZES:
        size, count = mib * MIB, TOTAL // (mib * MIB)
        times: dict[str, list[float]] = {name: [] for name in ("put", "put_bare", "get", "get_bare", "cpu")}
        for turn in range(ROUNDS + 1):
            taken = _one_round(bench, size, count, turn)
            for name in times:
                times[name] += [taken[name]] if turn else []
        low = {name: statistics.median(values) for name, values in times.items()}
        for what in ("put", "get"):
            ours, bare = (TOTAL / 1e6 / low[name] for name in (what, f"{what}_bare"))
            against = f"the store's own client: {bare:,.0f} MB/s; ours: {ours:,.0f} MB/s"
            name = f"{bench.kind}_{bench.codec}_{what}_{mib}_mib"
            yield Result(name, ours / bare, "x", against, at_least(GOALS[bench.codec]))
        name = f"{bench.kind}_{bench.codec}_get_{mib}_mib_cpu_per_gb"
        yield Result(name, low["cpu"] / (TOTAL / 1e9), "s", "CPU time of the worker for each GB read")


def _one_round(bench: Bench, size: int, count: int, turn: int) -> dict[str, float]:
    keys, taken = bench.keys(count), dict[str, float]()
    puts: list[tuple[str, Callable[[], object]]] = [
        ("put", lambda: bench.put(keys, size)),
        ("put_bare", lambda: bench.put_bare(keys, size)),
    ]
    gets: list[tuple[str, Callable[[], object]]] = [
        ("get", lambda: taken.__setitem__("get", bench.read(keys))),
        ("get_bare", lambda: bench.get_bare(keys, size)),
    ]
    for name, action in puts[:: -1 if turn % 2 else 1]:
        pause()
        taken[name] = time_of(action)
    for name, action in gets[:: -1 if turn % 2 else 1]:
        pause()
        before = bench.scene.worker_cpu()
        seconds = time_of(action)
        if name == "get":
            taken["cpu"] = bench.scene.worker_cpu() - before
        else:
            taken[name] = seconds
    bench.remove(keys)
    return taken


def asking(bench: Bench) -> Iterator[Result]:
    """Measures a question for one page and one for many."""
    keys = bench.keys(256)
    written = bench.fleet.write([], bench.pages(keys, 4096))
    assert all(written.stored)
    for count in (1, 256) if bench.kind == "mooncake" else (1,):
        missed, names = bench.missed(keys[:count]), bench.names(keys[:count])

        def ask(missed: GroupMatch = missed) -> None:
            location = bench.client.locate(missed)
            assert location.wait(LONG_S) and location.longest_hit() is not None

        def bare(names: list[str] = names) -> None:
            bench.bare.ask(names)

        ask()
        bare()
        ours, theirs = median_times(QUESTIONS, ask, bare)
        what = "batch_is_exist" if bench.kind == "mooncake" else "HEAD"
        against = f"{what}: {1e6 * theirs:,.0f} us; ours: {1e6 * ours:,.0f} us"
        yield Result(f"{bench.kind}_question_of_{count}", ours / theirs, "x", against, at_most(1.5))


def matching(bench: Bench, pid: int) -> Iterator[Result]:
    """Measures matches of 512 keys beside an engine that asks a fleet whose store is stopped."""
    hot = bench.keys(512)
    bench.client.reserve(hot, 4096).publish()
    idle: list[float] = []
    busy: list[float] = []
    halt = threading.Event()
    with bench.client.match(hot) as match:
        assert len(match) == len(hot)
        for _ in range(3):
            _sample(bench.client, hot, idle)
            os.kill(pid, signal.SIGSTOP)
            other = threading.Thread(target=_ask_all_the_time, args=(bench, halt))
            other.start()
            _sample(bench.client, hot, busy)
            halt.set()
            other.join()
            halt.clear()
            os.kill(pid, signal.SIGCONT)
    quiet, loud = (float(np.percentile(taken, 99)) for taken in (idle, busy))
    against = f"idle p99: {1e6 * quiet:.0f} us; beside: {1e6 * loud:.0f} us"
    yield Result("match_p99_beside_a_stopped_store", loud / quiet, "x", against, at_most(1.2))


def _ask_all_the_time(bench: Bench, halt: threading.Event) -> None:
    """Loads pages that no tier has, on another client."""
    out = np.zeros((1, 4096), np.uint8)
    with Client(bench.scene.socket, timeout=0.5) as client:
        client.wait_attached(LONG_S)
        while not halt.wait(0.02):
            with client.match(bench.keys(1)) as match:
                client.load(match, out)


def _sample(client: Client, keys: Keys, taken: list[float]) -> None:
    ends = time.monotonic() + SAMPLE_S
    while time.monotonic() < ends:
        began = time.perf_counter()
        client.match(keys).release()
        taken.append(time.perf_counter() - began)
        time.sleep(0.0005)


def measure() -> Iterator[Result]:
    """Runs all measurements, each with a store of its own."""
    with tempfile.TemporaryDirectory(prefix="pagetier-bench-") as name:
        for kind, codec in ((kind, codec) for kind in ("s3", "mooncake") for codec in GOALS):
            folder = Path(name) / f"{kind}-{codec}"
            folder.mkdir()
            with ExitStack() as stack:
                server: S3Server | MooncakeServers
                if kind == "s3":
                    server = stack.enter_context(s3_server(folder))
                else:
                    server = stack.enter_context(mooncake_servers(folder))
                bench = Bench(server, codec, stack, folder)
                yield from moving(bench)
                if codec == "plain":
                    yield from asking(bench)
                if codec == "plain" and isinstance(server, S3Server):
                    yield from matching(bench, server.process.pid)


def record() -> dict[str, Any]:
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    try:
        import mooncake.store  # noqa: F401
    except ImportError as error:
        return {"measured": False, "reason": f"Mooncake cannot be loaded: {error}"}
    return {"measured": True, "device": machine(), "results": [row_of(result) for result in measure()]}


if __name__ == "__main__":
    run_command(__doc__, RESULTS, record)
