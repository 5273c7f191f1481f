"""Measures what a second device is worth: two limited ones against one, in the same run."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from disk_setup import QuietScene, until
from measure import Result, at_least, time_of
from pagetier.client import Client, Keys, Namespace
from pagetier.daemon.status.daemon_status import unpack
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm._core import KEY_BYTES

MIB = 1 << 20
PAGE = 8 * MIB
TOTAL = int(os.environ.get("BENCH_DEVICES_MIB", "1024")) * MIB
LIMIT = int(os.environ.get("BENCH_DEVICE_MIB", "150")) * MIB
"""Bytes a second of each device: so few that the processors are not the limit of two."""
FETCH = 32
_SPACE = Namespace(model="bench", dtype="none", page_tokens=16)


def devices(folder: Path, content: mmap.mmap, rounds: int) -> Iterator[Result]:
    """Yields how much faster two devices write and read than one."""
    limiter = folder / "device_limit.so"
    source = Path(__file__).with_name("device_limit.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", limiter, source, "-ldl"], check=True)
    taken = [(_moved(folder, content, limiter, 1), _moved(folder, content, limiter, 2)) for _ in range(rounds)]
    for at, what in enumerate(("write", "read")):
        ratio = statistics.median(one[at] / two[at] for one, two in taken)
        speeds = " and ".join(f"{TOTAL / statistics.median(times) / 1e9:.2f}" for times in _columns(taken, at))
        against = f"one device and two of {LIMIT / 1e9:.2f} GB/s each: {speeds} GB/s"
        yield Result(f"{what}_two_devices_over_one", ratio, "x", against, at_least(1.8))


def _columns(taken: list[tuple[tuple[float, float], tuple[float, float]]], at: int) -> list[list[float]]:
    return [[pair[number][at] for pair in taken] for number in (0, 1)]


def _moved(folder: Path, content: mmap.mmap, limiter: Path, count: int) -> tuple[float, float]:
    """Returns the seconds in which `count` devices write all pages, and read them."""
    paths = [folder / f"device-{number}" for number in range(count)]
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
    size = (TOTAL * 2 + 512 * MIB) // count
    flags = ["--disk-path", ",".join(map(str, paths)), "--disk-size", str(size)]
    arena = ["--arena-size", str(TOTAL + TOTAL // 4), "--set", "arena.frame_size=1MiB"]
    environment = {"LD_PRELOAD": str(limiter), "BENCH_DEVICE_LIMIT": str(LIMIT)}
    with QuietScene(folder, *arena, *flags, **environment) as scene, scene.client() as client:
        until("disk", scene.disk_open)
        until("all devices", lambda: _open_devices(scene) == count)
        keys = Keys(_SPACE, np.random.default_rng(7).bytes(KEY_BYTES * (TOTAL // PAGE)))
        _fill(client, keys, content)
        wrote = time_of(scene.ask_saved)
        scene.wait_until_nothing_is_saved()
        scene.flush("memory")
        return wrote, time_of(lambda: _read(client, keys))


def _open_devices(scene: QuietScene) -> int:
    with scene.observing() as (_, observer):
        return sum(device.standing is Standing.OPEN for device in unpack(observer.status()).disk.devices)


def _fill(client: Client, keys: Keys, content: mmap.mmap) -> None:
    pages = np.frombuffer(content, dtype=np.uint8)[:PAGE].reshape(1, PAGE)
    for at in range(len(keys)):
        assert client.store(keys[at : at + 1], pages).stored == 1


def _read(client: Client, keys: Keys) -> None:
    """Brings pages into memory, two requests at a time, as several engines would."""
    parts = [keys[at : at + FETCH] for at in range(0, len(keys), FETCH)]
    waiting = [(client.prefetch(part, 120), len(part)) for part in parts[:2]]
    for part in [*parts[2:], None, None]:
        request, pages = waiting.pop(0)
        assert request.wait(120) == pages
        waiting += [(client.prefetch(part, 120), len(part))] if part is not None else []
