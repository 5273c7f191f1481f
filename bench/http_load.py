"""`python bench/http_load.py`: measures whether requests to the HTTP interface delay reservations.

Stores of one page are timed alone, beside two processes that only compute, and beside a caller that sends bodies of a
megabyte without pause. The caller and the HTTP process take two cores, too, so the second and the third are compared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from daemon_setup import Stage
from measure import Result, at_most, main
from pagetier.client import Client, Namespace

ROUNDS, STORES = 5, 400
NAMESPACE = Namespace(model="bench/http", dtype="bfloat16", page_tokens=16)
SPIN = "while True: pass"
CALL = """
import http.client, json, socket, sys
body = json.dumps({"namespace": sys.argv[2], "tokens": list(range(150_000))})
while True:
    caller = http.client.HTTPConnection("daemon")
    caller.sock = socket.socket(socket.AF_UNIX)
    caller.sock.connect(sys.argv[1])
    caller.request("POST", "/v1/lookup", body)
    assert caller.getresponse().read()
    caller.close()
"""


def measure() -> Iterator[Result]:
    """Runs all measurements, round by round."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "http.sock"
        with (
            Stage("--arena-size", "64MiB", "--set", "arena.frame_size=4KiB", "--set", f"http.listen={place}") as stage,
            stage.client() as client,
        ):
            times = _times(stage, client, place)
    for share, name in ((0.5, "median"), (0.99, "99th percentile")):
        alone, beside, called = (_quantile(times[way], share) for way in ("alone", "computing", "HTTP"))
        against = f"alone: {alone:.0f} µs; beside processes that compute: {beside:.0f} µs"
        yield Result(f"store of a page under HTTP load, {name}", called, "µs", against, at_most(1.5 * beside))
    yield Result("CPU of the daemon for each of the HTTP process", times["share"][0], "%", "", at_most(5))


def _times(stage: Stage, client: Client, place: Path) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {"alone": [], "computing": [], "HTTP": [], "share": []}
    numbers = iter(range(1, 1 << 30))
    _store(client, numbers, 50)
    spin, call = [sys.executable, "-c", SPIN], [sys.executable, "-c", CALL, str(place), NAMESPACE.name]
    for _ in range(ROUNDS):
        for way, commands in (("alone", []), ("computing", [spin, spin]), ("HTTP", [call])):
            with _running(commands):
                time.sleep(0.5)
                times[way] += _store(client, numbers, STORES)
    with _running([call]):
        time.sleep(0.5)
        before = _cpu(stage.pid), _cpu(_child(stage.pid))
        time.sleep(3.0)
        mine, theirs = _cpu(stage.pid) - before[0], _cpu(_child(stage.pid)) - before[1]
    times["share"].append(100 * mine / theirs)
    return times


def _store(client: Client, numbers: Iterator[int], count: int) -> list[float]:
    """Returns the times of stores of one page each, in µs."""
    times = []
    for _ in range(count):
        keys = NAMESPACE.keys([next(numbers)] * 16)
        began = time.perf_counter()
        client.store(keys, [b"x" * 4096])
        times.append((time.perf_counter() - began) * 1e6)
        time.sleep(0.0005)
    return times


@contextmanager
def _running(commands: list[list[str]]) -> Iterator[None]:
    with ExitStack() as stack:
        for command in commands:
            process = stack.enter_context(subprocess.Popen(command))
            stack.callback(process.kill)
        yield


def _quantile(times: list[float], share: float) -> float:
    return statistics.quantiles(times, n=100)[round(share * 100) - 1]


def _cpu(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


if __name__ == "__main__":
    main("Reservations under HTTP load", measure)
