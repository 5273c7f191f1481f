"""Runs, moved one by one, are equivalent to the host path's copy, and their number is minimal."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from copy_case_memory import Placed, aligned, host_copied_pages, moved_bytes
from copy_cases import FRAME_BYTES, Case, Stored, case_of, cases
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.runs import Cutting, Runs, buffer_runs, run_bytes, runs_of
from pagetier.kernels.gpu.staging import Ring, batches, buffer_needed
from pagetier.kernels.layout.frames import Arena, Frames
from pagetier.kernels.layout.slot_map import SlotMap, slot_map
from pagetier.kernels.layout.tables import token_rows

BOTH = pytest.mark.parametrize("direction", Direction)
TOKENS_BEFORE_HEADS = ("layer", "kind", "block", "token", "head")
HEADS_BEFORE_TOKENS = ("layer", "kind", "block", "head", "token")
BLOCKS_OUTERMOST = ("block", "layer", "kind", "head", "token")


def moved(runs: Runs, direction: Direction, seed: int = 0) -> None:
    """Moves the runs in random order, since they are independent."""
    for at in np.random.default_rng(seed).permutation(len(runs)):
        ends = (runs.arena[at], runs.cache[at])
        moved_bytes(*(ends if direction is Direction.STORE else ends[::-1]), runs.nbytes[at])


def expect_few(runs: Runs, frames: Frames) -> None:
    """Asserts that each run is inside one frame, and that none could be merged with the next."""
    size = frames.arena.frame_bytes
    begin = runs.arena - np.uint64(frames.arena.address)
    assert runs.nbytes.all()
    assert np.array_equal(begin // size, (begin + runs.nbytes - 1) // size)
    follows = (runs.cache[1:] == (runs.cache + runs.nbytes)[:-1]) & (begin[1:] == (begin + runs.nbytes)[:-1])
    assert not (follows & (begin[1:] % size != 0)).any()


@BOTH
@given(case=cases())
@settings(deadline=None, max_examples=150)
def test_runs_are_the_copy(direction: Direction, case: Case) -> None:
    placed = Placed(case)
    copy = placed.copy(direction)
    wanted = placed.after(copy)
    runs = runs_of(copy)
    moved(runs, direction)
    placed.expect(wanted)
    expect_few(runs, placed.frames)


def through(copy: Copy, buffer_bytes: int) -> None:
    """Copies by way of two buffers: the host path on the cache's side, runs on the frames' side."""
    memory = aligned(2 * buffer_bytes, 3)
    ring = Ring(memory.ctypes.data, len(memory))
    for batch in batches(copy, ring.buffer_bytes):
        buffers = [ring.next_buffer() for _ in batch.parts]
        staged, runs = batch.staged(ring.address), batch.runs(buffers)
        assert staged.frames.arena.nbytes <= ring.buffer_bytes
        expect_few(runs, copy.frames)
        for part, (buffer, pages) in enumerate(zip(buffers, batch.parts, strict=True)):
            if copy.direction is Direction.STORE:
                host_copied_pages(staged, batch.staged_part(part), buffer.address)
            moved(runs.of_pages(pages), copy.direction)
            if copy.direction is Direction.LOAD:
                host_copied_pages(staged, batch.staged_part(part), buffer.address)


@BOTH
@given(case=cases(), more=st.integers(0, 3))
@settings(deadline=None, max_examples=100)
def test_runs_of_a_buffer_cover_what_the_copy_covers(direction: Direction, case: Case, more: int) -> None:
    """Bytes of a page that are not copied differ in the buffer, and must be unchanged in the frames."""
    placed = Placed(case)
    copy = placed.copy(direction)
    wanted = placed.after(copy)
    through(copy, max(16, buffer_needed(copy)) + more * (case.transfer.page_bytes // 16 * 16))
    placed.expect(wanted)


@given(case=cases())
@settings(deadline=None, max_examples=100)
def test_the_average_run_is_counted_without_expanding(case: Case) -> None:
    """In frames that hold a page. Neighbouring heads and planes can only make runs longer."""
    room = -(-case.transfer.page_bytes // 16) * 16
    table = np.arange(len(case.transfer.slots), dtype=np.int32)[:, None]
    runs = Cutting(case.transfer, Frames(Arena(16, len(table) * room, room), table)).runs(
        range(len(case.transfer.planes))
    )
    assert run_bytes(case.transfer, room) <= (int(runs.nbytes.sum()) // len(runs) if len(runs) else 0)


def copy_of(stored: list[Stored], slots: SlotMap, page_bytes: int = 0) -> Copy:
    """Returns a copy of all planes in frames of `page_bytes`, by default of 4 KiB."""
    case = case_of(stored, slots, np.random.default_rng(1))
    frames = case.frames
    if page_bytes:
        table = np.arange(len(slots), dtype=np.int32)[:, None]
        frames = Frames(Arena(16, len(slots) * page_bytes, page_bytes), table)
    return Copy(Direction.STORE, case.transfer, frames, case.planes)


def average(copy: Copy) -> int:
    return run_bytes(copy.transfer, copy.frames.arena.frame_bytes)


BLOCKS = slot_map([7, 2, 5, 0], 2, 32, 16)
LARGE_BLOCKS = slot_map([3, 1], 2, 32, 32)
IN_A_ROW = slot_map([4, 5, 6, 7], 2, 32, 16)
TOKEN_SLOTS = slot_map(list(range(9, 73)), 2, 32, 1)
ROWS = {"layers": 2, "kinds": 2, "heads": 3, "width": 64}
KNOWN = {
    "tokens before heads: rows": (Stored(TOKENS_BEFORE_HEADS, **ROWS), BLOCKS, 64),
    "heads before tokens: blocks": (Stored(HEADS_BEFORE_TOKENS, **ROWS), BLOCKS, 16 * 64),
    "neighbouring blocks do not help where heads lie between": (
        Stored(HEADS_BEFORE_TOKENS, **ROWS),
        IN_A_ROW,
        16 * 64,
    ),
    "a latent: blocks": (Stored(TOKENS_BEFORE_HEADS, 3, 1, 1, 576), BLOCKS, 16 * 576),
    "a latent in neighbouring blocks: pages": (Stored(TOKENS_BEFORE_HEADS, 3, 1, 1, 576), IN_A_ROW, 32 * 576),
    "a latent in slots: pages": (Stored(TOKENS_BEFORE_HEADS, 3, 1, 1, 576), TOKEN_SLOTS, 32 * 576),
    "heads before tokens, a page a block: planes": (Stored(HEADS_BEFORE_TOKENS, **ROWS), LARGE_BLOCKS, 3 * 32 * 64),
    "gaps between rows: rows": (Stored(HEADS_BEFORE_TOKENS, 2, 2, 3, 64, gap=16), BLOCKS, 64),
}


@pytest.mark.parametrize("name", KNOWN)
def test_how_long_runs_are(name: str) -> None:
    stored, slots, length = KNOWN[name]
    copy = copy_of([stored], slots, 1 << 20)
    assert average(copy) == length
    assert set(runs_of(copy).nbytes.tolist()) == {length}


def test_whole_pages_in_the_cache_are_one_run_a_frame() -> None:
    """The cache has all planes of a block in the page's own order."""
    slots = slot_map([3, 1], 2, 16, 16)
    copy = copy_of([Stored(BLOCKS_OUTERMOST, **ROWS)], slots)
    assert copy.transfer.page_bytes == 3 * FRAME_BYTES
    assert runs_of(copy).nbytes.tolist() == [FRAME_BYTES] * 6
    assert average(copy) == 3 * 16 * 64


def test_runs_are_never_longer_than_a_frame() -> None:
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, 1, 1, 1, 4096)], IN_A_ROW)
    assert average(copy) == FRAME_BYTES


def test_small_planes_weigh_as_much_as_they_have_runs() -> None:
    """Scales of 4 bytes beside rows of 1 KiB: they are half of the runs, but few of the bytes."""
    large, small = Stored(TOKENS_BEFORE_HEADS, 1, 1, 2, 1024), Stored(TOKENS_BEFORE_HEADS, 1, 1, 2, 4)
    assert average(copy_of([large, small], BLOCKS, 1 << 20)) == (1024 + 4) // 2


def test_nothing_to_move() -> None:
    for slots in (
        slot_map([], 0, 16, 16),
        slot_map([1], 1, 16, 16).without([True]),
        slot_map([1], 1, 16, 16, 0, range(0)),
    ):
        copy = copy_of([Stored(TOKENS_BEFORE_HEADS, **ROWS)], slots)
        assert len(runs_of(copy)) == average(copy) == 0
        assert not list(batches(copy, 1 << 20))
        assert not len(buffer_runs(copy, np.zeros(1, np.int64), 0))
    none = msgspec.structs.replace(copy_of([Stored(TOKENS_BEFORE_HEADS, **ROWS)], BLOCKS), planes=range(2, 2))
    assert len(runs_of(none)) == 0
    assert not list(batches(none, 1 << 20))


def test_runs_of_two_pages_are_never_merged() -> None:
    """In the cache, the end of one page is followed by a piece of the next, at the offset where the first one ends."""
    slots = SlotMap(16, 8, np.array([4, 0, 9, 5], np.int32), token_rows([0, 16], [0, 8], [8, 16]))
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, 1, 1, 1, 64)], slots)
    assert runs_of(copy).nbytes.tolist() == [8 * 64] * 2
    placed = Placed(case_of([Stored(TOKENS_BEFORE_HEADS, 1, 1, 1, 64)], slots, np.random.default_rng(1)))
    wanted = placed.after(placed.copy(Direction.STORE))
    moved(runs_of(placed.copy(Direction.STORE)), Direction.STORE)
    placed.expect(wanted)


def test_an_axis_of_one_may_have_any_stride() -> None:
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, 3, 1, 1, 576)], TOKEN_SLOTS, 1 << 20)
    planes = copy.transfer.planes.copy()
    planes["token"] = 1
    odd = msgspec.structs.replace(copy, transfer=msgspec.structs.replace(copy.transfer, planes=planes))
    assert average(odd) == 32 * 576
    assert set(runs_of(odd).nbytes.tolist()) == {32 * 576}


def test_layers_are_divided_alike() -> None:
    """Planes of both kinds: token by token, and block by block."""
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, **ROWS), Stored(HEADS_BEFORE_TOKENS, **ROWS)], BLOCKS)
    cutting = Cutting(copy.transfer, copy.frames)
    for planes in (range(3), range(4, 8), range(3, 5), range(8)):
        one, other = cutting.runs(planes), runs_of(msgspec.structs.replace(copy, planes=planes))
        for name in Runs.__struct_fields__:
            assert np.array_equal(getattr(one, name), getattr(other, name))
    assert sum(len(cutting.runs(range(at, at + 1))) for at in range(8)) == len(runs_of(copy))


def test_slots_smaller_than_a_plane_are_rejected() -> None:
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, **ROWS)], BLOCKS)
    assert buffer_needed(copy) == 3 * 32 * 64
    small, large = list(batches(copy, buffer_needed(copy))), list(batches(copy, 8 * buffer_needed(copy)))
    assert [(len(batch.copy.planes), batch.parts) for batch in small] == [(1, [range(1), range(1, 2)])] * 4
    assert [(len(batch.copy.planes), batch.parts) for batch in large] == [(4, [range(2)])]
    with pytest.raises(ValueError, match="buffers of 6143 bytes are too small for planes of 6144 bytes"):
        list(batches(copy, buffer_needed(copy) - 1))


def test_frames_and_planes_that_are_not_the_copys() -> None:
    copy = copy_of([Stored(TOKENS_BEFORE_HEADS, **ROWS)], BLOCKS)
    for table in (copy.frames.table[:1], copy.frames.table[:, :-1]):
        with pytest.raises(ValueError, match="the frames hold"):
            runs_of(msgspec.structs.replace(copy, frames=Frames(copy.frames.arena, table)))
    for planes in (range(5), range(-1, 2), range(0, 4, 2)):
        with pytest.raises(ValueError, match="is not within the 4 planes"):
            buffer_runs(msgspec.structs.replace(copy, planes=planes), np.zeros(2, np.int64), 0)
