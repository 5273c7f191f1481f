"""Measures the speed of the kernels, relative to plain copies of as many bytes.

The plain copies are device to device, and one large copy to or from pinned memory. The parameters are the run length
(contiguous bytes in the cache), the page size and the number of programs. Without a GPU the result says that nothing
was measured, and why.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from pagetier.kernels.gpu.launch import Grid, Tables, gather, scatter
from pagetier.kernels.layout.engine_layouts import latents
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

KIB, MIB = 1 << 10, 1 << 20
RUNS = (2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB)
PAGES = (1 * MIB, 2 * MIB, 8 * MIB, 32 * MIB)
PROGRAMS = (1, 2, 4, 8, 16, 32, 64)
TOTAL = 256 * MIB  # several times the largest cache of a GPU
FRAME = 1 * MIB
BLOCK_TOKENS = 16
MOST_PLANES = 64
ROUNDS = 9

Action = Callable[[], object]


class Result(msgspec.Struct, frozen=True):
    """One copy and the plain copy that it is compared with, taken in turn: medians in 10^9 bytes a second."""

    copy: str
    arena: str
    run_bytes: int
    page_bytes: int
    programs: int
    gb_per_s: float
    plain_gb_per_s: float


class Scene:
    """A cache with scattered blocks, its pages, and their frames scattered over the arena.

    `cache` and `arena` are tensors of as many bytes, the cache's on the device that copies. A page's planes have blocks
    of `run` bytes, with as many planes as a model has layers if the page is large enough.
    """

    def __init__(self, cache: Any, arena: Any, run: int, page: int) -> None:
        planes = min(MOST_PLANES, page // run)
        count, page_blocks = cache.numel() // page, page // planes // run
        rng = np.random.default_rng(11)
        self.blocks = rng.permutation(count * page_blocks)
        self.table = rng.permutation(arena.numel() // FRAME).reshape(count, page // FRAME)
        self.layers = cache.view(planes, len(self.blocks), BLOCK_TOKENS, run // BLOCK_TOKENS)
        self.cache, self.arena = cache, arena
        layout = latents(list(self.layers))
        paged = PagedCache(layout, PageLayout.of(layout, page_blocks * BLOCK_TOKENS))
        slots = slot_map(self.blocks, count, page_blocks * BLOCK_TOKENS, BLOCK_TOKENS)
        frames = frames_of(Arena(arena.data_ptr(), arena.numel(), FRAME, arena), self.table)
        (storing,) = paged.storing(slots)
        self.storing, self.loading = Tables(storing, frames), Tables(paged.loading(slots), frames)

    def verify(self) -> None:
        """Copies there and back, and compares both with torch's indexing."""
        self.arena.zero_()
        gather(self.storing)
        wanted = self._pages()
        _wait(self.cache)
        count = len(self.table)
        assert torch.equal(self.arena.view(-1, FRAME)[torch.from_numpy(self.table)].view(count, -1), wanted)
        before = self.cache.clone()
        self.cache.zero_()
        scatter(self.loading)
        assert torch.equal(self.cache, before)

    def _pages(self) -> Any:
        """Returns the expected pages [pages, bytes], on the arena's device."""
        blocks = torch.from_numpy(self.blocks).to(self.layers.device)
        pages = self.layers[:, blocks].view(len(self.layers), len(self.table), -1).transpose(0, 1)
        return pages.reshape(len(self.table), -1).to(self.arena.device)


def measure(device: str) -> Iterator[Result]:
    """Yields all combinations, except runs that are longer than a page."""
    cache = torch.randint(0, 256, (TOTAL,), dtype=torch.uint8, device=device)
    plain = cache.clone()
    arenas = {
        "pinned": torch.empty(TOTAL, dtype=torch.uint8, pin_memory=True),
        "device": torch.empty_like(cache),
    }
    for (name, arena), run, page in product(arenas.items(), RUNS, PAGES):
        if run <= page:
            scene = Scene(cache, arena, run, page)
            scene.verify()
            for programs in PROGRAMS:
                yield from _compared(scene, plain, name, (run, page, programs))


def _compared(scene: Scene, plain: Any, arena: str, sizes: tuple[int, int, int]) -> Iterator[Result]:
    grid = Grid(programs=sizes[2])
    pairs: dict[str, tuple[Action, Action]] = {
        "gather": (
            lambda: gather(scene.storing, grid=grid),
            lambda: scene.arena.copy_(plain, non_blocking=True),
        ),
        "scatter": (
            lambda: scatter(scene.loading, grid=grid),
            lambda: plain.copy_(scene.arena, non_blocking=True),
        ),
    }
    for name, actions in pairs.items():
        ours, theirs = (scene.cache.numel() / seconds / 1e9 for seconds in median_seconds(*actions))
        yield Result(name, arena, *sizes, ours, theirs)


def median_seconds(*actions: Action) -> list[float]:
    """Returns the median seconds of each action on the current stream, in turn, timed by the device's clock."""
    times: list[list[float]] = [[] for _ in actions]
    for counts in [False] + [True] * ROUNDS:
        for action, taken in zip(actions, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            action()
            end.record()
            end.synchronize()
            if counts:
                taken.append(begin.elapsed_time(end) / 1e3)
    return [statistics.median(taken) for taken in times]


def _wait(tensor: Any) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object, as in bench/results/gpu_kernels.json")
    as_json = parser.parse_args().json
    if not torch.cuda.is_available():
        reason = "no GPU on this machine"
        print(json.dumps({"measured": False, "reason": reason}) if as_json else f"not measured: {reason}")
        return
    name = torch.cuda.get_device_name()
    if as_json:
        results = [msgspec.to_builtins(result) for result in measure("cuda:0")]
        print(json.dumps({"measured": True, "device": name, "results": results}, indent=1))
    else:
        _print_table(name)


def _print_table(name: str) -> None:
    table = Table(*Result.__struct_fields__, "over plain", title=name)
    console = Console()
    with console.status("measuring"):
        for result in measure("cuda:0"):
            cells = [
                f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in msgspec.structs.astuple(result)
            ]
            table.add_row(*cells, f"{result.gb_per_s / result.plain_gb_per_s:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
