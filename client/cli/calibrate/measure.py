"""Measures how fast each copy path copies runs of each length. Copies are enqueued in chunks, as the copier does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import msgspec
import numpy as np
import torch

from pagetier.client.cli.calibrate.thresholds import COPY_PATHS, Speed
from pagetier.kernels.config.copy_settings import CopySettings, PathName
from pagetier.kernels.device import Copy, DeviceError, Direction, Stream
from pagetier.kernels.layout.engine_layouts import latents
from pagetier.kernels.layout.frames import Arena, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm.clock import Deadline

MIB: Final = 1 << 20
FRAME_BYTES: Final = 2 * MIB  # a run never crosses the end of a frame
PAGE_BYTES: Final = 8 * MIB
BLOCK_TOKENS: Final = 16
MOST_LAYERS: Final = 32


class Scene:
    """Memory on a device, pinned memory of the same size on the host, and copies between them.

    Attributes:
        cache: A tensor of bytes on the device.
        arena: A tensor of bytes on the host; pinned unless the device is the host.
        nbytes: The size of each.
    """

    def __init__(self, device: str, nbytes: int) -> None:
        """Allocates the memory.

        Args:
            device: The device's name in torch.
            nbytes: The bytes on each side.

        Raises:
            ValueError: The memory is not whole pages.
            RuntimeError: There is not enough memory.
        """
        if nbytes < PAGE_BYTES or nbytes % PAGE_BYTES:
            raise ValueError(f"{nbytes} bytes are no pages of {PAGE_BYTES}")
        on_host = torch.device(device).type == "cpu"
        self.cache: Any = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device=device)
        self.arena: Any = torch.empty(nbytes, dtype=torch.uint8, pin_memory=not on_host)
        self.arena.zero_()
        self.nbytes = nbytes
        self.settle()

    def settle(self) -> None:
        """Waits for all work of the device, because the measured streams do not wait for torch's."""
        if self.cache.is_cuda:
            torch.cuda.synchronize(self.cache.device)

    def copies(self, direction: Direction, run_bytes: int, chunk_bytes: int) -> list[Copy]:
        """Returns copies of all of the memory, in chunks.

        The copies of both directions are the same, so that a load of what was stored changes nothing.

        Args:
            direction: The direction of the copies.
            run_bytes: The length of contiguous bytes on both sides, a power of two from 32 to FRAME_BYTES.
            chunk_bytes: The size of a chunk, a multiple of PAGE_BYTES.
        """
        layers = min(MOST_LAYERS, PAGE_BYTES // run_bytes)
        blocks = PAGE_BYTES // layers // run_bytes
        tensors = self.cache.view(layers, -1, BLOCK_TOKENS, run_bytes // BLOCK_TOKENS)
        layout = latents(list(tensors))
        paged = PagedCache(layout, PageLayout.of(layout, blocks * BLOCK_TOKENS))
        rng = np.random.default_rng(11)
        ids = rng.permutation(tensors.shape[1]).reshape(-1, blocks)
        table = rng.permutation(self.nbytes // FRAME_BYTES).reshape(len(ids), -1)
        pages = chunk_bytes // PAGE_BYTES
        return [
            self._copy(paged, direction, ids[first : first + pages], table[first : first + pages])
            for first in range(0, len(ids), pages)
        ]

    def _copy(self, paged: PagedCache, direction: Direction, ids: Any, table: Any) -> Copy:
        slots = slot_map(ids.reshape(-1), len(ids), paged.page.tokens, BLOCK_TOKENS)
        transfer = paged.loading(slots) if direction is Direction.LOAD else paged.storing(slots)[0]
        arena = Arena(self.arena.data_ptr(), self.nbytes, FRAME_BYTES, self.arena)
        return Copy(direction, transfer, frames_of(arena, table), range(len(transfer.planes)))


KIB: Final = 1 << 10
RUNS: Final = tuple(2 * KIB << step for step in range(11))  # to 2 MiB
TOTAL_BYTES: Final = 256 * MIB  # several times the largest cache of a GPU
CHUNK_BYTES: Final = 32 * MIB
ROUNDS: Final = 5
_LONGEST_S: Final = 60.0

Streams = Callable[[PathName, Direction], Stream]
"""Returns a stream whose copies all take one path."""


class Measured(msgspec.Struct, frozen=True):
    """The result of a measurement.

    Attributes:
        device: The name of the GPU.
        plain: GB/s of one large copy, by direction.
        speeds: The speed of each copy path and length, by direction.
    """

    device: str
    plain: dict[str, float]
    speeds: dict[str, list[Speed]]


class Timing(msgspec.Struct, frozen=True):
    """The amount of work of a measurement: all of the memory is copied in chunks, in each round once by each path.

    Attributes:
        total_bytes: The size of the memory.
        chunk_bytes: The size of a chunk.
        rounds: The number of rounds that count.
        runs: The lengths of runs.
    """

    total_bytes: int = TOTAL_BYTES
    chunk_bytes: int = CHUNK_BYTES
    rounds: int = ROUNDS
    runs: tuple[int, ...] = RUNS


def measure_gpu(index: int, settings: CopySettings, timing: Timing | None = None) -> Measured:
    """Measures each copy path on one GPU in both directions. Raises DeviceError without one, or without memory."""
    timing = timing or Timing()
    streams = gpu_streams(index, settings)
    try:
        scene = Scene(f"cuda:{index}", timing.total_bytes)
        speeds = {direction.value: list(speeds_of(scene, streams, direction, timing)) for direction in Direction}
        plain = {direction.value: _plain_speed(scene, direction, timing.rounds) for direction in Direction}
    except RuntimeError as error:
        raise DeviceError(f"cuda:{index}: {error}") from error
    return Measured(torch.cuda.get_device_name(index), plain, speeds)


def gpu_streams(index: int, settings: CopySettings) -> Streams:
    """Returns a function that makes streams of a GPU, for pinned memory. Raises DeviceError if there is no GPU."""
    from pagetier.kernels.gpu.cuda import CudaDevice

    CudaDevice(index, settings, lambda frames: True)  # reports a missing GPU before it is used

    def stream(path: PathName, direction: Direction) -> Stream:
        device = CudaDevice(index, msgspec.structs.replace(settings, path=path), lambda frames: True)
        return device.stream(direction)

    return stream


def speeds_of(scene: Scene, streams: Streams, direction: Direction, timing: Timing) -> Iterator[Speed]:
    """Yields the median speed of each copy path and length."""
    by_path = {path: streams(path, direction) for path in COPY_PATHS}
    for run_bytes in timing.runs:
        copies = scene.copies(direction, run_bytes, timing.chunk_bytes)
        actions = [partial(do, CopyBatch(stream, copies)) for stream in by_path.values()]
        for path, seconds in zip(by_path, median_seconds(actions, timing.rounds), strict=True):
            yield Speed(path, run_bytes, scene.nbytes / seconds / 1e9)


class CopyBatch(msgspec.Struct, frozen=True, eq=False):
    """Copies that are enqueued to a stream one after another."""

    stream: Stream
    copies: Sequence[Copy]


def do(*works: CopyBatch) -> None:
    """Enqueues one copy of each batch in turn until all are enqueued, and waits for them.

    Raises:
        DeviceError: A copy failed, or the copies take too long.
    """
    for copies in zip_longest(*(work.copies for work in works)):
        for work, copy in zip(works, copies, strict=True):
            if copy is not None:
                work.stream.enqueue(copy)
    deadline = Deadline(_LONGEST_S)
    for event in [work.stream.record() for work in works]:
        while not event.done():  # polled without a pause, because the pause would be measured, too
            if deadline.is_over:
                raise DeviceError(f"copies did not complete within {_LONGEST_S:.0f} s")


def begin_plain(scene: Scene, direction: Direction) -> None:
    """Begins one contiguous copy of all the memory on torch's current stream. It does not wait for a GPU."""
    there, back = (scene.arena, scene.cache), (scene.cache, scene.arena)
    target, source = there if direction is Direction.STORE else back
    target.copy_(source, non_blocking=True)


def _plain_speed(scene: Scene, direction: Direction, rounds: int) -> float:
    def plain() -> None:
        begin_plain(scene, direction)
        scene.settle()

    return scene.nbytes / median_seconds([plain], rounds)[0] / 1e9


def median_seconds(actions: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Returns the median duration of each action in seconds of the host's clock; the actions are taken in turn.

    The CPU time of an action counts, too. A first round, in which kernels are compiled, does not count.
    """
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(rounds + 1):
        for action, taken in zip(actions, times, strict=True):
            began = time.perf_counter()
            action()
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken[1:]) for taken in times]
