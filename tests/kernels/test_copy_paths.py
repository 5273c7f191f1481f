"""The copy paths compared with the host path: copy engines simulated by memmove, kernels in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copy_case_memory import Placed, aligned
from copy_cases import Case, Stored, case_of, cases
from fake_queues import LateDevice, LateKernels, LateQueue, all_moved
from interpreted_kernels import interpreted_kernels
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.copy_paths import DmaPath, FrameMemory, KernelPath, Moves, Queue, StagedPath, chosen
from pagetier.kernels.gpu.launch import GRID, Grid, PlaneTable
from pagetier.kernels.gpu.runs import runs_of
from pagetier.kernels.gpu.staging import Ring, buffer_needed
from pagetier.kernels.layout.frames import Frames
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import Transfer

BOTH = pytest.mark.parametrize("direction", Direction)
SEEDS = st.integers(0, 2**32 - 1)
HEADS = ("layer", "kind", "block", "head", "token")
NO_FRAMES = np.zeros((0, 0), np.int32)
STORED = [Stored(HEADS, layers=3, kinds=2, heads=2, width=64)]


def memmoved(moves: Moves, _: Queue) -> None:
    """Makes all moves at once."""
    all_moved(moves, list(range(len(moves.nbytes))))


def interpreted(grid: Grid) -> KernelPath:
    kernels = interpreted_kernels()
    return KernelPath(grid, {Direction.STORE: kernels.gather, Direction.LOAD: kernels.scatter})


class Rings:
    """A ring with random bytes, whose surroundings are compared."""

    def __init__(self, buffer_bytes: int, buffers: int) -> None:
        self.memory = aligned(4096 + buffers * buffer_bytes + 4096, 5)
        self.ring = Ring(self.memory.ctypes.data + 4096, buffers * buffer_bytes, buffers)
        self._guards = self._outside()

    def _outside(self) -> list[bytes]:
        return [self.memory[:4096].tobytes(), self.memory[-4096:].tobytes()]

    def expect_guards(self) -> None:
        assert self._outside() == self._guards


def buffer_sizes(copy: Copy, more: int) -> int:
    return max(16, buffer_needed(copy)) + more * copy.transfer.page_bytes // 16 * 16


@BOTH
@given(case=cases(), more=st.integers(-1, 3), buffers=st.integers(1, 4), seed=SEEDS)
@settings(deadline=None, max_examples=120)
def test_staged_copies_are_right_in_any_order_of_the_queues(
    direction: Direction, case: Case, more: int, buffers: int, seed: int
) -> None:
    """Three copies go through one ring, whose buffers are reused many times; work after the last copy is done in order.

    If the buffers are too small for a plane, the engines copy all of it.
    """
    placed, device = Placed(case), LateDevice(seed)
    copy = placed.copy(direction)
    rings = Rings(max(16, buffer_sizes(copy, more)), buffers)
    path = StagedPath(rings.ring, device.queues[1], LateKernels(device), device.memcpy)
    wanted = placed.after(copy)
    done: list[Any] = []
    for _ in range(3):
        path.enqueue(copy, device.queues[0])
    device.queues[0].do(lambda: done.append(placed.contents()))
    device.finish()
    (there,) = done
    for mine, its in zip(there, wanted, strict=True):
        np.testing.assert_array_equal(mine, its)
    rings.expect_guards()


@BOTH
@given(case=cases(), seed=SEEDS)
@settings(deadline=None, max_examples=50)
def test_copies_by_engines_equal_the_host_path(direction: Direction, case: Case, seed: int) -> None:
    placed, device = Placed(case), LateDevice(seed, 1)
    wanted = placed.after(placed.copy(direction))
    DmaPath(device.memcpy).enqueue(placed.copy(direction), device.queues[0])
    device.finish()
    placed.expect(wanted)


@BOTH
@given(case=cases())
@settings(deadline=None, max_examples=15)
def test_kernels_on_frames_equal_the_host_path(direction: Direction, case: Case) -> None:
    placed = Placed(case)
    wanted = placed.after(placed.copy(direction))
    interpreted(case.grid).enqueue(placed.copy(direction), LateQueue(0))
    placed.expect(wanted)


@BOTH
@given(case=cases(), more=st.integers(0, 2))
@settings(deadline=None, max_examples=15)
def test_kernels_on_the_ring_equal_the_host_path(direction: Direction, case: Case, more: int) -> None:
    placed = Placed(case)
    copy = placed.copy(direction)
    wanted, rings = placed.after(copy), Rings(buffer_sizes(copy, more), 2)
    StagedPath(rings.ring, LateQueue(1), interpreted(case.grid), memmoved).enqueue(copy, LateQueue(0))
    placed.expect(wanted)
    rings.expect_guards()


def small_case(blocks: int = 4) -> Case:
    """Returns pages of 32 tokens with heads before tokens, so that a run is the tokens of a block: 1 KiB."""
    return case_of(STORED, slot_map(list(range(blocks))[::-1], blocks // 2, 32, 16), np.random.default_rng(1))


def test_layers_share_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Successive layers of one transfer and its frames are uploaded to the device once."""
    launched: list[tuple[int, range]] = []
    monkeypatch.setattr(
        "pagetier.kernels.gpu.copy_paths.launch",
        lambda _, its, planes, __: launched.append((its.packed.data_ptr(), planes)),
    )
    path, copy = KernelPath(), Placed(small_case()).copy(Direction.LOAD)
    other = msgspec.structs.replace(copy, frames=Frames(copy.frames.arena, copy.frames.table))
    for one in (copy, msgspec.structs.replace(copy, planes=range(2, 4)), other):
        path.enqueue(one, LateQueue(0))
    (first, _), (second, planes), (third, _) = launched
    assert first == second != third
    assert planes == range(2, 4)


def test_copies_of_one_cache_share_its_planes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another cache comes between: each copy moves its own bytes."""
    made: list[PlaneTable] = []

    def counted(transfer: Transfer) -> PlaneTable:
        made.append(PlaneTable(transfer))
        return made[-1]

    monkeypatch.setattr("pagetier.kernels.gpu.copy_paths.PlaneTable", counted)
    path, (one, other) = interpreted(GRID), (Placed(small_case()) for _ in range(2))
    copies = {placed: placed.copy(Direction.STORE) for placed in (one, other)}
    for placed, tables in ((one, 1), (one, 1), (other, 2), (one, 3)):
        copy, wanted = copies[placed], placed.after(copies[placed])
        again = msgspec.structs.replace(copy, frames=Frames(copy.frames.arena, copy.frames.table))
        placed.arena[:] = 0xA5
        wanted = placed.after(again)
        path.enqueue(again, LateQueue(0))
        placed.expect(wanted)
        assert len(made) == tables


@pytest.mark.parametrize("pages", [0, 2])
def test_nothing_to_move(pages: int) -> None:
    """No pages, and pages of which no token is copied."""
    slots = slot_map([1, 0, 2, 3], 2, 32, 16, tokens=range(0)).some(0, pages)
    placed = Placed(case_of(STORED, slots, np.random.default_rng(1)))
    before, rings = placed.contents(), Rings(1 << 20, 2)
    kernels = interpreted(GRID)
    for path in (kernels, DmaPath(memmoved), StagedPath(rings.ring, LateQueue(1), kernels, memmoved)):
        for direction in Direction:
            path.enqueue(placed.copy(direction), LateQueue(0))
    placed.expect(before)
    empty = slot_map([], 0, 32, 16)
    nothing = msgspec.structs.replace(placed.copy(Direction.LOAD), frames=Frames(placed.frames.arena, NO_FRAMES))
    kernels.enqueue(
        msgspec.structs.replace(nothing, transfer=msgspec.structs.replace(placed.transfer, slots=empty)), LateQueue(0)
    )


class Journal(LateQueue):
    """Records the calls of all queues in order."""

    def __init__(self, handle: int, lines: list[tuple[str, ...]]) -> None:
        super().__init__(handle)
        self.name, self._lines, self._marks = "ab"[handle], lines, 0

    def mark(self) -> Any:
        self._marks += 1
        return f"{self.name}{self._marks}"

    def after(self, mark: object) -> None:
        self._lines.append((self.name, f"after {mark}"))

    def enqueue_pages(self, copy: Copy, pages: range, address: int, queue: Any) -> None:
        self._lines.append((queue.name, f"kernel {len(copy.planes)}x{len(pages)}"))

    def memcpy(self, moves: Moves, queue: Any) -> None:
        self._lines.append((queue.name, f"engines {moves.nbytes.sum()}"))


def journal_of(direction: Direction, buffers: int) -> list[tuple[str, ...]]:
    """Copies two pages one by one through a ring. Queue "a" is the copy's, queue "b" that of the engines."""
    lines: list[tuple[str, ...]] = []
    main, side = Journal(0, lines), Journal(1, lines)
    copy = Placed(small_case()).copy(direction)
    rings = Rings(copy.transfer.page_bytes, buffers)
    StagedPath(rings.ring, side, main, main.memcpy).enqueue(copy, main)
    return lines


PAGE = 6 * 2 * 32 * 64


def test_a_slot_is_reused_after_the_engines_have_read_it() -> None:
    page = ("a", "kernel 6x1"), ("b", "after a1"), ("b", f"engines {PAGE}")
    again = ("a", "kernel 6x1"), ("b", "after a2"), ("b", f"engines {PAGE}")
    assert journal_of(Direction.STORE, 2) == [*page, *again, ("a", "after b3")]
    assert journal_of(Direction.STORE, 1) == [*page, ("a", "after b1"), *again, ("a", "after b3")]


def test_a_slot_is_reused_after_the_kernel_has_read_it() -> None:
    page = ("b", f"engines {PAGE}"), ("a", "after b1"), ("a", "kernel 6x1")
    again = ("b", f"engines {PAGE}"), ("a", "after b2"), ("a", "kernel 6x1")
    assert journal_of(Direction.LOAD, 2) == [*page, *again]
    assert journal_of(Direction.LOAD, 1) == [*page, ("b", "after a1"), *again]


def test_buffers_take_turns() -> None:
    ring = Ring(64, 100, 3)
    assert ring.buffer_bytes == 32
    assert [ring.next_buffer().address for _ in range(4)] == [64, 96, 128, 64]


@pytest.mark.parametrize("args", [(64, 100, 0), (64, 60, 4), (65, 100, 2)])
def test_an_invalid_ring_is_rejected(args: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="cannot make a ring"):
        Ring(*args)


LIMITS = [(1025, 1025, "kernel"), (1024, 1025, "staged"), (1024, 1024, "dma"), (0, 0, "dma")]


@BOTH
@pytest.mark.parametrize(("kernel_below", "staged_below", "path"), LIMITS)
def test_the_run_length_selects_the_path(direction: Direction, kernel_below: int, staged_below: int, path: str) -> None:
    limits = Thresholds(kernel_below, staged_below)
    name = "stores" if direction is Direction.STORE else "loads"
    copy = Placed(small_case()).copy(direction)
    assert set(runs_of(copy).nbytes.tolist()) == {1024}
    given: dict[str, Any] = {name: limits}
    assert chosen(copy, CopySettings(**given), FrameMemory.REACHED) == path
    assert chosen(copy, CopySettings(**given), FrameMemory.PAGEABLE) == ("staged" if path == "kernel" else path)


@pytest.mark.parametrize("memory", FrameMemory)
@pytest.mark.parametrize("path", ["kernel", "staged", "dma"])
def test_a_configured_path_is_used(path: Any, memory: FrameMemory) -> None:
    """Unless a kernel would have to access memory that it cannot address."""
    copy = Placed(small_case()).copy(Direction.LOAD)
    reached = path != "kernel" or memory is FrameMemory.REACHED
    assert chosen(copy, CopySettings(path=path), memory) == (path if reached else "staged")


def test_published_figures_are_the_default() -> None:
    """28 to 34 KB per run."""
    copies = [
        case_of([Stored(HEADS, 1, 1, 1, width)], slot_map([1, 0], 1, 32, 16), np.random.default_rng(1))
        for width in (1024, 4096)
    ]
    names = []
    for case in copies:
        table = np.zeros((1, 1), np.int32)
        frames = Frames(msgspec.structs.replace(case.frames.arena, frame_bytes=1 << 20), table)
        copy = Copy(Direction.STORE, case.transfer, frames, case.planes)
        names.append(chosen(copy, CopySettings(), FrameMemory.REACHED))
    assert names == ["kernel", "dma"]
