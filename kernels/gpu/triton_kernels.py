"""The Triton kernel pair that copies tokens of pages between a paged cache and the frames of the arena.

The tables are those of every copy path. planes is int64[n, 8], a row for each run of equal heads in a layer of the
cache: base, block, token and head (an address and three strides in the cache), at and page_head (an offset and a
stride in the page), heads, width. pages is int64[m, 3]: position, first, end. blocks is int32[b], skip uint8[m],
frames int32[m, page_frames].

Bytes move in units of UNIT (16, 8, 4, 2 or 1), which divides every number of the planes. A work item is a tile of TILE
units of one plane of one page; the programs share `items` of them. Units are numbered in the page's order (head, token,
column), so that one run of bytes crosses the bus.

Every byte is used once while the model runs: loads and stores therefore bypass the L1 cache or leave it first, and are
evicted from the L2 cache first.
"""

# Triton functions have no Python types; the annotations here are for the compiler.
# ruff: noqa: ANN001, ANN202, N803, N806, PLR0913, PLR0917
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

# These arguments change with every launch: their values must not cause a compilation while an engine waits.
SCALARS = ["arena", "frame_bytes", "page_frames", "block_tokens", "plane_first", "planes_moved", "tiles", "items"]


@triton.jit
def _item(item, planes, pages, skip, plane_first, planes_moved, tiles, UNIT: tl.constexpr):
    """Returns an item's page, its rows of planes and pages, and the page's units of the plane (0 if it is skipped)."""
    which = item // tiles
    number = which // planes_moved
    plane, page = planes + (plane_first + which % planes_moved) * 8, pages + number * 3
    units = tl.load(plane + 6) * (tl.load(page + 2) - tl.load(page + 1)) * (tl.load(plane + 7) // UNIT)
    return number, plane, page, tl.where(tl.load(skip + number) != 0, 0, units).to(tl.uint32)


@triton.jit
def _sides(unit, units, plane, page, blocks, frames, arena, frame_bytes, block_tokens, UNIT: tl.constexpr):
    """Returns the first words of units in the cache and in the arena. 32 bits hold all offsets in a block or page."""
    first, width = tl.load(page + 1), tl.load(plane + 7).to(tl.uint32)
    columns, count = width // UNIT, (tl.load(page + 2) - first).to(tl.uint32)
    row, byte = unit // columns, unit % columns * UNIT
    head, token = row // count, row % count
    start = tl.load(page) + first
    slot, tokens = (start % block_tokens).to(tl.uint32) + token, block_tokens.to(tl.uint32)
    block = tl.load(blocks + start // block_tokens + slot // tokens, mask=unit < units, other=0).to(tl.int64)
    cache = tl.load(plane) + block * tl.load(plane + 1) + slot % tokens * tl.load(plane + 2) + head * tl.load(plane + 3)
    inside = tl.load(plane + 4).to(tl.uint32) + head * tl.load(plane + 5).to(tl.uint32)
    inside += (first.to(tl.uint32) + token) * width + byte
    size = frame_bytes.to(tl.uint32)
    frame = tl.load(frames + inside // size, mask=unit < units, other=0).to(tl.int64)
    return _words(cache + byte, UNIT), _words(arena + frame * frame_bytes + inside % size, UNIT)


@triton.jit
def _words(address, UNIT: tl.constexpr):
    """Returns the words of each unit as pointers [TILE, words]: two words for 16 bytes, else one of the unit's size."""
    WORD: tl.constexpr = tl.int64 if UNIT >= 8 else (tl.int32 if UNIT == 4 else (tl.int16 if UNIT == 2 else tl.int8))
    WORDS: tl.constexpr = 2 if UNIT == 16 else 1
    # The hint turns the two words into one access of 128 bits.
    begin = tl.multiple_of(address.to(tl.pointer_type(WORD)), UNIT)
    return begin[:, None] + tl.arange(0, WORDS)[None, :]


@triton.jit(do_not_specialize=SCALARS)
def gather(
    planes,
    pages,
    blocks,
    skip,
    frames,
    arena: tl.int64,
    frame_bytes: tl.int32,
    page_frames: tl.int32,
    block_tokens: tl.int32,
    plane_first: tl.int32,
    planes_moved: tl.int32,
    tiles: tl.int32,
    items: tl.int64,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Copies from the cache to the arena: a store."""
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        number, plane, page, units = _item(item, planes, pages, skip, plane_first, planes_moved, tiles, UNIT)
        begin = (item % tiles).to(tl.uint32) * TILE
        if begin < units:
            unit = begin + tl.arange(0, TILE).to(tl.uint32)
            own_frames = frames + number * page_frames
            cached, paged = _sides(unit, units, plane, page, blocks, own_frames, arena, frame_bytes, block_tokens, UNIT)
            mask = (unit < units)[:, None]
            words = tl.load(cached, mask=mask, eviction_policy="evict_first")
            tl.store(paged, words, mask=mask, cache_modifier=".cs")


@triton.jit(do_not_specialize=SCALARS)
def scatter(
    planes,
    pages,
    blocks,
    skip,
    frames,
    arena: tl.int64,
    frame_bytes: tl.int32,
    page_frames: tl.int32,
    block_tokens: tl.int32,
    plane_first: tl.int32,
    planes_moved: tl.int32,
    tiles: tl.int32,
    items: tl.int64,
    UNIT: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Copies from the arena to the cache: a load."""
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        number, plane, page, units = _item(item, planes, pages, skip, plane_first, planes_moved, tiles, UNIT)
        begin = (item % tiles).to(tl.uint32) * TILE
        if begin < units:
            unit = begin + tl.arange(0, TILE).to(tl.uint32)
            own_frames = frames + number * page_frames
            cached, paged = _sides(unit, units, plane, page, blocks, own_frames, arena, frame_bytes, block_tokens, UNIT)
            mask = (unit < units)[:, None]
            words = tl.load(paged, mask=mask, eviction_policy="evict_first")
            tl.store(cached, words, mask=mask, cache_modifier=".cs")
