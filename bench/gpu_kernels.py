"""Measures the speed of the kernels, relative to plain copies of as many bytes.

The plain copies are device to device, and one large copy to or from pinned memory. The parameters are the run length
(contiguous bytes in the cache), the page size and the number of programs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import msgspec
import numpy as np
import torch

from gpu_command import main
from measure import Result
from pagetier.kernels.gpu.launch import Grid, Tables, gather, scatter
from pagetier.kernels.layout.engine_layouts import latents
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache

KIB, MIB = 1 << 10, 1 << 20
BLOCK_TOKENS = 16
MOST_PLANES = 64

Action = Callable[[], object]


class Scale(msgspec.Struct, frozen=True):
    """The amount of work. The memory is larger than the largest cache of a GPU."""

    device: str = "cuda:0"
    total_bytes: int = 128 * MIB
    frame: int = 1 * MIB
    runs: tuple[int, ...] = (2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, 512 * KIB, 2 * MIB)
    pages: tuple[int, ...] = (2 * MIB, 32 * MIB)
    programs: tuple[int, ...] = (4, 8, 16, 32)
    rounds: int = 9


class Scene:
    """A cache with scattered blocks, its pages, and their frames scattered over the arena.

    `cache` and `arena` are tensors of as many bytes, the cache's on the device that copies. A page's planes have blocks
    of `run` bytes, with as many planes as a model has layers if the page is large enough. `sizes` are those of run,
    page and frame.
    """

    def __init__(self, cache: Any, arena: Any, sizes: tuple[int, int, int]) -> None:
        run, page, frame = sizes
        planes = min(MOST_PLANES, page // run)
        count, page_blocks = cache.numel() // page, page // planes // run
        rng = np.random.default_rng(11)
        self.blocks = rng.permutation(count * page_blocks)
        self.table = rng.permutation(arena.numel() // frame).reshape(count, page // frame)
        self.layers = cache.view(planes, len(self.blocks), BLOCK_TOKENS, run // BLOCK_TOKENS)
        self.cache, self.arena, self._frame = cache, arena, frame
        layout = latents(list(self.layers))
        paged = PagedCache(layout, PageLayout.of(layout, page_blocks * BLOCK_TOKENS))
        slots = slot_map(self.blocks, count, page_blocks * BLOCK_TOKENS, BLOCK_TOKENS)
        frames = frames_of(Arena(arena.data_ptr(), arena.numel(), frame, arena), self.table)
        (storing,) = paged.storing(slots)
        self.storing, self.loading = Tables(storing, frames), Tables(paged.loading(slots), frames)

    def verify(self) -> None:
        """Copies there and back, and compares both with torch's indexing."""
        self.arena.zero_()
        gather(self.storing)
        wanted = self._pages()
        _wait(self.cache)
        count = len(self.table)
        assert torch.equal(self.arena.view(-1, self._frame)[torch.from_numpy(self.table)].view(count, -1), wanted)
        before = self.cache.clone()
        self.cache.zero_()
        scatter(self.loading)
        assert torch.equal(self.cache, before)

    def _pages(self) -> Any:
        """Returns the expected pages [pages, bytes], on the arena's device."""
        blocks = torch.from_numpy(self.blocks).to(self.layers.device)
        pages = self.layers[:, blocks].view(len(self.layers), len(self.table), -1).transpose(0, 1)
        return pages.reshape(len(self.table), -1).to(self.arena.device)


def measure(scale: Scale) -> Iterator[Result]:
    """Yields all combinations, except runs that are longer than a page."""
    cache = torch.randint(0, 256, (scale.total_bytes,), dtype=torch.uint8, device=scale.device)
    plain = cache.clone()
    arenas = {
        "pinned": torch.empty(scale.total_bytes, dtype=torch.uint8, pin_memory=cache.is_cuda),
        "device": torch.empty_like(cache),
    }
    for (name, arena), run, page in product(arenas.items(), scale.runs, scale.pages):
        if run <= page:
            scene = Scene(cache, arena, (run, page, scale.frame))
            scene.verify()
            for programs in scale.programs:
                for copy, seconds, theirs in _timed(scene, plain, programs, scale.rounds):
                    label = f"{copy}_{name}_{run // KIB}kib_of_{page // KIB}kib_on_{programs}_over_plain"
                    rates = (f"{scale.total_bytes / each / 1e9:.1f}" for each in (seconds, theirs))
                    yield Result(label, theirs / seconds, "x", "{} GB/s, plain {}".format(*rates))


def _timed(scene: Scene, plain: Any, programs: int, rounds: int) -> Iterator[tuple[str, float, float]]:
    """Yields the name of each kernel, its seconds, and those of the plain copy in the same direction."""
    grid, clock = Grid(programs=programs), device_seconds if plain.is_cuda else host_seconds
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
        ours, theirs = median_seconds(clock, rounds, *actions)
        yield name, ours, theirs


def median_seconds(clock: Callable[[Action], float], rounds: int, *actions: Action) -> list[float]:
    """Returns the median seconds of each action, in turn. A first round does not count."""
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds + 1):
        for action, taken in zip(actions, times, strict=True):
            taken.append(clock(action))
    return [statistics.median(taken[1:]) for taken in times]


def device_seconds(action: Action) -> float:
    """Returns the seconds of an action on the current stream, by the device's clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def host_seconds(action: Action) -> float:
    """Returns the seconds of an action by the host's clock."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _wait(tensor: Any) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


if __name__ == "__main__":
    small = Scale("cpu", 32 * KIB, 16 * KIB, (16 * KIB,), (32 * KIB,), programs=(4,), rounds=1)
    main(__doc__, lambda: measure(Scale()), lambda: measure(small))
