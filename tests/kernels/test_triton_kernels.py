"""The kernel pair compared with plain loops: all bytes of the cache and of the arena, also outside of the copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from copy_cases import FRAME_BYTES, Case, Stored, case_of, cases
from copy_oracle import Row, gathered, pages_in, rows_of, scattered, with_pages
from interpreted_kernels import interpreted_kernels
from pagetier.kernels.gpu import triton_kernels
from pagetier.kernels.gpu.launch import Grid, Tables, launch, scatter
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.frames import Arena, Frames, frames_of
from pagetier.kernels.layout.page_layout import PageLayout
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.tables import TOKENS, token_rows
from pagetier.kernels.layout.transfer import PagedCache


class Device(msgspec.Struct, frozen=True):
    """A device for the kernels: the pair, the location of the cache, and a function that allocates the arena."""

    kernels: Any
    name: str
    arena: Callable[[int], Any]


class Run:
    """A case with memory: random bytes in the cache and in the arena."""

    def __init__(self, case: Case, device: Device) -> None:
        self.case, self.device = case, device
        rng = np.random.default_rng(case.cache_bytes)
        self.cache = _aligned(case.cache_bytes, device.name)
        self.arena = device.arena(case.frames.arena.nbytes)
        for memory in (self.cache, self.arena):
            memory.copy_(torch.from_numpy(rng.integers(0, 256, len(memory), np.uint8)))
        planes = case.transfer.planes.copy()
        planes["base"] = planes["base"] + self.cache.data_ptr()
        self.transfer = msgspec.structs.replace(case.transfer, planes=planes, device=device.name)
        arena = Arena(self.arena.data_ptr(), case.frames.arena.nbytes, FRAME_BYTES, self.arena)
        self.tables = Tables(self.transfer, Frames(arena, case.frames.table))

    def contents(self) -> tuple[Any, Any]:
        """Returns copies of cache and arena after the device has finished."""
        if self.device.name != "cpu":
            torch.cuda.synchronize()
        return self.cache.cpu().numpy().copy(), self.arena.numpy().copy()

    def check(self) -> None:
        """Gathers, then fills the arena with other bytes and scatters."""
        case, kernels, table = self.case, self.device.kernels, self.case.frames.table
        cache, arena = self.contents()
        launch(kernels.gather, self.tables, case.planes, case.grid)
        wanted = gathered(self.rows(), cache, pages_in(arena, table, FRAME_BYTES))
        self.expect(cache, with_pages(arena, table, FRAME_BYTES, wanted))
        self.arena.add_(101)
        arena = self.contents()[1]
        launch(kernels.scatter, self.tables, case.planes, case.grid)
        self.expect(scattered(self.rows(), cache, pages_in(arena, table, FRAME_BYTES)), arena)

    def rows(self) -> Iterator[Row]:
        """Returns the rows that are copied."""
        planes, slots = (
            self.case.transfer.planes[self.case.planes.start : self.case.planes.stop],
            self.case.transfer.slots,
        )
        return rows_of(planes, slots.pages, slots.blocks, slots.block_tokens, slots.skip)

    def expect(self, cache: Any, arena: Any) -> None:
        for is_there, wanted in zip(self.contents(), (cache, arena), strict=True):
            np.testing.assert_array_equal(is_there, wanted)


def _aligned(nbytes: int, device: str) -> Any:
    """Returns memory at a multiple of 16 bytes, like torch's own tensors on a GPU."""
    memory = torch.empty(nbytes + FRAME_BYTES, dtype=torch.uint8, device=device)
    begin = -memory.data_ptr() % FRAME_BYTES
    return memory[begin : begin + nbytes]


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)], scope="module")
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "interpreter":
        return Device(interpreted_kernels(), "cpu", lambda nbytes: _aligned(nbytes, "cpu"))
    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    return Device(triton_kernels, "cuda:0", lambda nbytes: torch.empty(nbytes, dtype=torch.uint8).pin_memory())


@given(case=cases())
@settings(deadline=None, max_examples=80)
def test_any_copy_moves_its_bytes_and_no_other(device: Device, case: Case) -> None:
    Run(case, device).check()


NHD, HND = ("layer", "kind", "block", "token", "head"), ("layer", "kind", "block", "head", "token")
SHAPES = {
    "NHD": [Stored(NHD, layers=2, kinds=2, heads=2, width=256)],
    "HND": [Stored(HND, layers=2, kinds=2, heads=2, width=256)],
    "blocks outermost": [Stored(("block", "layer", "kind", "token", "head"), layers=2, kinds=2, heads=2, width=256)],
    "heads outermost": [Stored(("head", "block", "token", "kind", "layer"), layers=2, kinds=2, heads=2, width=160)],
    "K and V side by side": [
        Stored(("layer", "block", "token", "head", "kind"), layers=2, kinds=2, heads=2, width=256)
    ],
    "latents": [Stored(NHD, layers=3, kinds=1, heads=1, width=1152)],
    "scales": [Stored(NHD, layers=2, kinds=2, heads=2, width=128), Stored(NHD, layers=2, kinds=2, heads=2, width=4)],
    "odd": [Stored(HND, layers=1, kinds=2, heads=3, width=37, shift=5)],
}
FOUR = slot_map([3, 1, 2, 0], 4, 16, 16)
OPAQUE = [Stored(NHD, layers=2, kinds=1, heads=1, width=70_000), Stored(NHD, layers=2, kinds=1, heads=1, width=4098)]


@pytest.mark.parametrize("block_tokens", [1, 16, 24])
@pytest.mark.parametrize("shape", SHAPES)
def test_known_shapes_as_they_are_launched(device: Device, shape: str, block_tokens: int) -> None:
    """A request that ends inside its third page, of 24 tokens each, with the default tiles."""
    rng = np.random.default_rng(3)
    slots = slot_map(rng.permutation(90)[: -(-70 // block_tokens)], 3, 24, block_tokens, tokens=range(1, 70))
    Run(case_of(SHAPES[shape], slots, rng), device).check()


@pytest.mark.parametrize("programs", [1, 5, 500])
def test_few_programs_or_more_than_there_is_to_do(device: Device, programs: int) -> None:
    case = case_of(SHAPES["scales"], FOUR, np.random.default_rng(8), grid=Grid(programs, tile=128))
    Run(case, device).check()


def test_opaque_states_are_copied(device: Device) -> None:
    rng = np.random.default_rng(4)
    Run(case_of(OPAQUE, slot_map([5, 0, 3], 3, 1, 1), rng), device).check()


def of(tensors: list[Stored]) -> Case:
    return case_of(tensors, FOUR, np.random.default_rng(7))


def pages_of(slots: SlotMap, **changed: Any) -> Case:
    return case_of(SHAPES["scales"], msgspec.structs.replace(slots, **changed), np.random.default_rng(5))


NOTHING = {
    "no pages": {"pages": np.zeros(0, TOKENS)},
    "no tokens": {"pages": token_rows(FOUR.pages["position"], FOUR.pages["first"], 0)},
    "all skipped": {"skip": np.ones(4, np.uint8)},
}


@pytest.mark.parametrize("changed", NOTHING.values(), ids=NOTHING)
def test_nothing_to_move(device: Device, changed: dict[str, Any]) -> None:
    Run(pages_of(FOUR, **changed), device).check()


def test_the_mask_may_be_written_on_the_device(device: Device) -> None:
    """Pages that a kernel of the caller marks as present are skipped, as if the host had skipped them."""
    masked = pages_of(FOUR, skip=np.array([0, 1, 1, 0], np.uint8))
    run = Run(masked, device)
    run.tables.skip.fill_(0)
    run.tables.skip[1:3] = 1
    run.check()


def test_layer_by_layer_is_all_of_it(device: Device) -> None:
    """Planes of several units have another order on the device, but keep the numbers of the caller's table."""
    whole, by_layer = Run(pages_of(FOUR), device), Run(pages_of(FOUR), device)
    launch(device.kernels.gather, whole.tables)
    for plane in range(len(by_layer.transfer.planes)):
        launch(device.kernels.gather, by_layer.tables, range(plane, plane + 1))
    np.testing.assert_array_equal(by_layer.contents()[1], whole.contents()[1])


def test_narrow_planes_do_not_slow_the_others(device: Device) -> None:
    units = {name: [group.unit for group in Run(of(SHAPES[name]), device).tables.groups] for name in SHAPES}
    assert units.pop("scales") == [16, 4]
    assert units.pop("odd") == [1]
    assert set(map(tuple, units.values())) == {(16,)}


def test_strides_that_are_never_taken_do_not_count(device: Device) -> None:
    """Torch may give any stride to an axis of one element."""
    case = case_of(SHAPES["latents"], slot_map([0, 1], 2, 1, 1), np.random.default_rng(6))
    planes = case.transfer.planes.copy()
    planes["token"] = planes["head"] = 1
    transfer = msgspec.structs.replace(case.transfer, planes=planes)
    run = Run(msgspec.structs.replace(case, transfer=transfer), device)
    assert [group.unit for group in run.tables.groups] == [16]
    run.check()


@pytest.mark.parametrize("planes", [range(-1, 2), range(9), range(2, 1), range(0, 4, 2)], ids=str)
def test_planes_that_are_not_there(device: Device, planes: range) -> None:
    run = Run(of(SHAPES["scales"]), device)
    with pytest.raises(ValueError, match=r"range\(.*\) is not within the 8 planes"):
        launch(device.kernels.gather, run.tables, planes)


def test_frames_that_do_not_fit(device: Device) -> None:
    case = Run(of(SHAPES["NHD"]), device).case
    whole = case.frames
    for table in (whole.table[:3], whole.table[:, :-1]):
        with pytest.raises(ValueError, match="the frames hold"):
            Tables(case.transfer, Frames(whole.arena, table))
    with pytest.raises(ValueError, match="not aligned"):
        Tables(case.transfer, Frames(Arena(8, whole.arena.nbytes, FRAME_BYTES), whole.table))


@pytest.mark.gpu
def test_compute_sanitizer_finds_no_error() -> None:
    """The sanitizer detects accesses outside of all allocations, the guard zones those inside of other ones."""
    tool = shutil.which("compute-sanitizer")
    if not tool or not torch.cuda.is_available():
        pytest.skip("there is no GPU, or no compute-sanitizer on PATH")
    some = "known_shapes and 24 and (scales or latents or odd)"
    command = [tool, "--error-exitcode=9", sys.executable, "-m", "pytest", "-m", "gpu", "-k", some, __file__]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-4000:]


def test_a_cache_in_host_memory_is_refused_before_a_launch() -> None:
    state = torch.zeros(4, 2, 8, 2, 16)
    layout = engine_layouts.kv_second([state])
    cache = PagedCache(layout, PageLayout.of(layout, 8))
    arena = torch.zeros(16384, dtype=torch.uint8)
    begin = -arena.data_ptr() % 4096
    frames = frames_of(Arena(arena.data_ptr() + begin, 8192, 4096), [[1]])
    tables = Tables(cache.loading(slot_map([2], 1, 8, 8)), frames)
    with pytest.raises(ValueError, match="in host memory"):
        scatter(tables)
