"""Each layout in each type and page size through each copy path: all bytes, guard zones included.

On a simulated device only a few of them, because random ones are in the tests of the copy paths and of the host path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from engine_caches import ENGINES, SLOTS, STATES, EngineCache, Shape
from fake_queues import LateDevice, LateKernels, all_moved
from gpu_copies import begun, device_of, registered
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.copy_paths import CopyPath, DmaPath, Moves, Queue, StagedPath
from pagetier.kernels.gpu.staging import Ring, buffer_needed
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, joined_slots, slot_map
from pagetier.kernels.layout.transfer import PagedCache
from torch_reference import Pages, load_plainly, stored

BLOCK, PAGES = 16, 3
ALL_TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.int8]


class Device(msgspec.Struct, frozen=True):
    """A device: its name in torch, what is tested on it, and a function that makes a copy by a path."""

    name: str
    dtypes: Sequence[Any]
    page_blocks: Sequence[int]
    perform: Callable[[str, Copy], None]


def on_gpu(path: str, copy: Copy) -> None:
    assert begun(device_of(path), [copy]).wait(10)


def on_simulated_device(path: str, copy: Copy) -> None:
    """Kernels are the host path here. For "kernel" they fill a ring, too, because the path needs a compiled kernel."""
    late = LateDevice(1)
    ring = torch.empty(8 * buffer_needed(copy), dtype=torch.uint8)
    staged = StagedPath(Ring(ring.data_ptr(), len(ring), 2, ring), late.queues[1], LateKernels(late), late.memcpy)
    chosen: CopyPath = DmaPath(_moved) if path == "dma" else staged
    chosen.enqueue(copy, late.queues[0])
    late.finish()


def _moved(moves: Moves, _: Queue) -> None:
    all_moved(moves, list(range(len(moves.nbytes))))


@pytest.fixture(params=["simulated", pytest.param("gpu", marks=pytest.mark.gpu)], scope="module")
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "simulated":
        return Device("cpu", [torch.bfloat16], [1], on_simulated_device)
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return Device("cuda:0", ALL_TYPES, [1, 3, 16], on_gpu)


def slots_of(engine: str, page_blocks: int) -> SlotMap:
    """Returns two requests in scattered blocks: whole pages, and pages whose first and last tokens are left out."""
    block = 1 if engine in SLOTS | STATES else BLOCK
    page = 1 if engine in STATES else page_blocks * BLOCK
    blocks = PAGES * page // block
    table = np.random.default_rng(page).permutation(2 * blocks + 2)
    part = slot_map(table[blocks : 2 * blocks], PAGES, page, block, 0, range(1, PAGES * page - 1))
    return joined_slots(slot_map(table[:blocks], PAGES, page, block), part.without((False, True, False)))


class Case:
    """A cache on the host, on which the expected result is computed, its copy on the device, and pages."""

    def __init__(self, device: Device, engine: str, dtype: Any, slots: SlotMap) -> None:
        torch.manual_seed(9)
        shape = Shape(2, int(slots.blocks.max()) + 3, slots.block_tokens, heads=2, width=24, dtype=dtype)
        self.slots, self.expected = slots, ENGINES[engine](shape)
        self.there: EngineCache = ENGINES[engine](msgspec.structs.replace(shape, device=device.name))
        self.there.restore(self.expected.memory)
        self.layout = PageLayout.of(self.expected.layout, slots.page_tokens)
        self.pages = Pages(len(slots), self.layout.nbytes, 4096, seed=4)
        self._perform = device.perform

    def check_store(self, path: str) -> None:
        expected = stored(self.slots, self.expected, self.layout, self.pages)
        for transfer in PagedCache(self.there.layout, self.layout).storing(self.slots):
            self._perform(path, Copy(Direction.STORE, transfer, self.pages.frames, range(len(transfer.planes))))
        self._compare(expected)

    def check_load(self, path: str) -> None:
        expected = self.pages.memory.copy()
        transfer = PagedCache(self.there.layout, self.layout).loading(self.slots)
        self._perform(path, Copy(Direction.LOAD, transfer, self.pages.frames, range(len(transfer.planes))))
        load_plainly(self.slots, self.expected, self.layout, self.pages)
        self._compare(expected)

    def _compare(self, pages: Any) -> None:
        assert np.array_equal(self.pages.memory, pages)
        for found, wanted in zip(self.there.memory, self.expected.memory, strict=True):
            assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("path", ["kernel", "staged", "dma"])
@pytest.mark.parametrize("engine", ENGINES)
def test_each_layout_type_and_page_size(device: Device, engine: str, path: str, direction: Direction) -> None:
    for dtype, page_blocks in product(device.dtypes, device.page_blocks):
        case = Case(device, engine, dtype, slots_of(engine, page_blocks))
        memory = case.pages.memory
        with nullcontext() if device.name == "cpu" else registered(memory.ctypes.data, len(memory)):
            (case.check_store if direction is Direction.STORE else case.check_load)(path)
