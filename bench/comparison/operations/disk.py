"""Pages written to disk and read back."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from comparison.recorder import Recorder
from disk_setup import QuietScene, Scene, until
from pagetier.client import Client, Keys, Namespace

_MIB = 1 << 20
_PAGE, _PAGES, _TURNS = 8 * _MIB, 8, 8
_CONTENT = np.random.default_rng(6).integers(0, 256, (_PAGES, _PAGE), dtype=np.uint8)
_SPACE = Namespace(model="bench", dtype="none", page_tokens=16)


def measure(recorder: Recorder) -> None:
    """Stores and writes with a final sync, then reads what the kernel still has in its page cache.

    The folder is beside the benchmarks, because /tmp may be memory.
    """
    parent = os.environ.get("BENCH_DISK_FOLDER", Path(__file__).parents[2])
    sizes = ("--arena-size", "640MiB", "--disk-size", "1GiB")
    with (
        tempfile.TemporaryDirectory(prefix=".disk-", dir=parent) as folder,
        QuietScene(Path(folder), *sizes) as scene,
        recorder.attached(scene) as client,
    ):
        until("disk", scene.disk_open)
        recorder.include_workers(scene)
        batches = [Keys(_SPACE, np.random.default_rng(turn).bytes(32 * _PAGES)) for turn in range(_TURNS)]
        for keys in batches:
            recorder.time_once("store, write 64 MiB", partial(_write, scene, client, keys))
        scene.flush("memory")
        for keys in batches:
            recorder.time_once("read 64 MiB from disk", partial(_read, client, keys))


def _write(scene: Scene, client: Client, keys: Keys) -> None:
    assert client.store(keys, _CONTENT).stored == _PAGES
    scene.ask_saved()


def _read(client: Client, keys: Keys) -> None:
    assert client.prefetch(keys, 60).wait(60) == _PAGES
