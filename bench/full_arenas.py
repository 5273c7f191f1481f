"""Fills arenas with pages of six models, and measures how much of them holds bytes of pages, and how much is written.

`pagetier-bench replay` sends prompts in blocks of an engine, in pages of as many blocks as the engine makes, to a
daemon of which only the sizes of arena and disk are set. Pages have their real sizes. The groups of a model, and the
three models that share an arena, are replayed at the same time, in several rounds. These three are those whose pages
fill least. `BENCH_MODELS="DeepSeek V3" BENCH_BLOCKS=16` takes one case.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from disk_setup import Scene, until
from measure import Result, at_least, at_most, main
from model_pages import BLOCKS, MODELS, Layout, chosen
from pagetier.daemon.stats.snapshot import Snapshot
from pagetier.daemon.stats.snapshot_reader import take_snapshot

_MODELS: Final = os.environ.get("BENCH_MODELS", ",".join(MODELS)).split(",")
_BLOCKS: Final = [int(block) for block in os.environ.get("BENCH_BLOCKS", ",".join(map(str, BLOCKS))).split(",")]
_ARENA: Final = 512 << 20
_PAGES_BYTES: Final = 1.5 * _ARENA
_ROUNDS: Final = 4
_PROMPT_PAGES: Final = 4  # of which half are those of another prompt, too
_PATIENCE_S: Final = 300.0
_REPLAY: Final = "from pagetier.client.cli.replay import replay; replay()"
_MOST_WRITTEN: Final = at_most(1.1)
_LEAST_HELD: Final = at_least(0.88)


def _write_trace(path: Path, layout: Layout, nbytes: float, page_bytes: int, ids: Iterator[int]) -> None:
    """Writes prompts whose pages have so many bytes together."""
    dice, block = random.Random(path.name), layout.page_tokens // layout.blocks
    half = _PROMPT_PAGES * layout.blocks // 2
    prefixes = [[next(ids) for _ in range(half)] for _ in range(2)]
    with path.open("w") as file:
        for _ in range(max(2, round(2 * nbytes / (_PROMPT_PAGES * page_bytes)))):
            prompt = [*dice.choice(prefixes), *(next(ids) for _ in range(half + 1))]
            file.write(json.dumps({"input_length": block * len(prompt), "hash_ids": prompt}) + "\n")


def _replays(
    folder: Path, socket: Path, name: str, layout: Layout, nbytes: float, ids: Iterator[int]
) -> Iterator[list[str]]:
    """Returns a command for each size of the model's pages."""
    block, total = layout.page_tokens // layout.blocks, sum(layout.page_bytes)
    for size, groups in Counter(layout.page_bytes).items():
        trace = folder / f"{name} {size}".replace(".", "-")  # replays of traces with the same name share pages
        _write_trace(trace, layout, nbytes * groups * size / total, size, ids)
        sizes = {"--block-tokens": block, "--page-blocks": layout.blocks, "--page-bytes": size, "--socket": socket}
        options = [str(word) for option in sizes.items() for word in option]
        yield [sys.executable, "-c", _REPLAY, str(trace), "--json", *options]


def _run(commands: Sequence[list[str]]) -> None:
    """Runs the replays at the same time. A page that is wrong ends the benchmark."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    for process in running:
        report = json.loads(process.communicate()[0])
        if process.returncode or report["pages_refused"] or not report["hit_tokens_memory"]:
            sys.exit(f"the replay failed: {report}")


def _filled(names: Sequence[str], block: int) -> Snapshot:
    """Returns a snapshot of a daemon that had more pages of these models than its arena has room for."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK_FOLDER", sys.path[0])) as place:
        folder = Path(place)
        sizes = ("--arena-size", str(_ARENA), "--disk-size", str(4 * _ARENA))
        with Scene(folder, *sizes) as scene:
            scene.client().close()
            until("the disk", scene.disk_open, _PATIENCE_S)
            layouts = {name: chosen(MODELS[name](block)) for name in names}
            share, ids = _PAGES_BYTES / len(names) / _ROUNDS, count(1000)
            for _ in range(_ROUNDS):
                _run([one for name in names for one in _replays(folder, scene.socket, name, layouts[name], share, ids)])
            scene.wait_quiet()
            until("the status", lambda: _all_reported(_snapshot(scene)), _PATIENCE_S)
            return _snapshot(scene)


def _snapshot(scene: Scene) -> Snapshot:
    """Returns the snapshot that `pagetier stats` shows."""
    with scene.observing() as (_, observer):
        return take_snapshot(observer)


def _all_reported(snapshot: Snapshot) -> bool:
    """Returns whether the status, which the daemon publishes now and then, has the writes of all frames on disk."""
    return snapshot.disk.device_bytes >= snapshot.tiers.disk.used


def _results(case: str, snapshot: Snapshot) -> Iterator[Result]:
    memory, disk = snapshot.tiers.memory, snapshot.tiers.disk
    against = f"{memory.used / _ARENA:.1%} of the frames are in use"
    yield Result(f"{case}: held", memory.bytes / _ARENA, "x", against, _LEAST_HELD)
    written = snapshot.disk.device_bytes
    yield Result(f"{case}: written", written / disk.bytes_in, "x", f"{written >> 20} MiB", _MOST_WRITTEN)


def measure() -> Iterator[Result]:
    """Runs all cases: each model alone, and three together."""
    for block in _BLOCKS:
        for name in _MODELS:
            yield from _results(f"{name}, blocks of {block}", _filled([name], block))
        least = sorted(_MODELS, key=lambda name: chosen(MODELS[name](block)).fill)[:3]
        if len(least) == 3:
            yield from _results(f"{', '.join(least)}, blocks of {block}", _filled(least, block))


if __name__ == "__main__":
    main("Full arenas in frames of the default size", measure)
