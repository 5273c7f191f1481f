"""The map of a request's block table to pages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.kernels.layout.slot_map import SlotMap, joined_slots, slot_map
from pagetier.kernels.layout.tables import TOKENS, token_rows
from pagetier.shm._core import check_blocks, check_blocks_apart

torch = pytest.importorskip("torch")


def copied(slots: SlotMap) -> list[tuple[int, int, int, int]]:
    """Returns page, token of the page, block and token of the block for each token that the map copies."""
    found = []
    for page, (position, first, end) in enumerate(slots.pages.tolist()):
        for token in range(first, end):
            block, slot = divmod(position + token, slots.block_tokens)
            if not (len(slots.skip) and slots.skip[page]):
                found.append((page, token, int(slots.blocks[block]), slot))
    return found


def copied_places(slots: SlotMap) -> set[int]:
    """Returns the places of the table that the copied tokens are in."""
    rows = zip(slots.pages.tolist(), slots.skips.tolist(), strict=True)
    tokens = [range(at + first, at + end) for (at, first, end), skipped in rows if not skipped]
    return {token // slots.block_tokens for page in tokens for token in page}


def needed(slots: SlotMap) -> int:
    """Returns how many blocks a cache must have for these slots, at most 10."""
    return next(blocks for blocks in range(11) if accepts(check_blocks, slots, blocks))


def apart(slots: SlotMap) -> bool:
    """Returns whether a large cache can be written by these slots."""
    return accepts(check_blocks_apart, slots, 20)


def accepts(check: Any, slots: SlotMap, blocks: int) -> bool:
    try:
        check(blocks, slots.block_tokens, slots.pages, slots.blocks, slots.skip)
    except ValueError:
        return False
    return True


@st.composite
def maps(draw: Any) -> tuple[SlotMap, list[tuple[int, int, int, int]]]:
    """Draws a slot map and the tokens that it copies."""
    page, block, count = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(0, 4))
    position = draw(st.integers(-9, 12))
    ends = position + count * page
    low, high = max(0, position), max(0, position, ends)
    tokens = range(*sorted(draw(st.tuples(*[st.integers(low, high)] * 2))))
    table = draw(st.lists(st.integers(0, 9), min_size=-(-high // block), max_size=-(-high // block) + 1))
    skip = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    its = slot_map(table, count, page, block, position, tokens).without(skip)
    wanted = [
        ((at - position) // page, (at - position) % page, table[at // block], at % block)
        for at in tokens
        if not skip[(at - position) // page]
    ]
    return its, wanted


@settings(deadline=None)
@given(maps())
def test_tokens_are_where_the_table_says(case: tuple[SlotMap, list[tuple[int, int, int, int]]]) -> None:
    slots, wanted = case
    assert copied(slots) == wanted
    assert needed(slots) == max((block + 1 for _, _, block, _ in wanted), default=0)


@settings(deadline=None)
@given(maps())
def test_a_block_at_two_copied_places_is_found(case: tuple[SlotMap, Any]) -> None:
    slots, _ = case
    blocks = slots.blocks[sorted(copied_places(slots))].tolist()
    assert apart(slots) == (len(set(blocks)) == len(blocks))


@settings(deadline=None)
@given(maps(), st.integers(0, 6), st.integers(0, 6))
def test_a_map_can_be_narrowed_to_tokens_of_each_page(case: tuple[SlotMap, Any], first: int, count: int) -> None:
    slots, wanted = case
    some = range(first, first + count)
    assert copied(slots.narrowed(some)) == [one for one in wanted if one[1] in some]
    assert slots.narrowed(range(slots.page_tokens)) is slots
    assert copied(slots) == wanted


@settings(deadline=None)
@given(st.lists(maps(), min_size=1, max_size=3))
def test_requests_can_be_joined(cases: list[tuple[SlotMap, Any]]) -> None:
    size = (cases[0][0].page_tokens, cases[0][0].block_tokens)
    alike = [case for case in cases if (case[0].page_tokens, case[0].block_tokens) == size]
    wanted, pages = [], 0
    for slots, its in alike:
        wanted += [(page + pages, *rest) for page, *rest in its]
        pages += len(slots)
    together = joined_slots(*(slots for slots, _ in alike))
    assert copied(together) == wanted
    assert len(together) == pages


def test_all_pages_are_whole_unless_said_otherwise() -> None:
    slots = slot_map([5, 6, 7], 2, 3, 4, position=5)
    assert slots.pages.tolist() == [(5, 0, 3), (8, 0, 3)]
    assert slots.blocks.tolist() == [5, 6, 7]
    assert (len(slots), len(slots.skip)) == (2, 0)


def test_pages_that_begin_before_the_table() -> None:
    slots = slot_map([5, 6], 2, 4, 3, position=-2, tokens=range(1, 5))
    assert slots.pages.tolist() == [(-2, 3, 4), (2, 0, 3)]


@pytest.mark.parametrize("tokens", [range(0), range(3, 3), range(7, 3), range(-5, -9), range(99, 99)])
def test_no_tokens_are_an_empty_copy(tokens: range) -> None:
    slots = slot_map([5, 6], 2, 4, 3, position=-2, tokens=tokens)
    assert all(first == end for _, first, end in slots.pages.tolist())
    assert needed(slots) == 0


def test_a_map_has_slices_of_pages() -> None:
    slots = slot_map(range(8), 4, 2, 1).without([True, False, True, False])
    some = slots.some(1, 3)
    assert copied(some) == [(0, 0, 2, 0), (0, 1, 3, 0)]


def test_skipping_adds_up() -> None:
    slots = slot_map(range(4), 4, 1, 1).without([True, False, False, False]).without([False, False, True, False])
    assert slots.skip.tolist() == [1, 0, 1, 0]
    assert slots.skip.dtype == np.uint8


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), min_size=1, max_size=4))
def test_overlapping_pages_are_found(edges: list[tuple[int, int]]) -> None:
    """Two pages overlap if they share a token."""
    starts, counts = np.array(edges).T
    pages = token_rows(starts - 1, 1, 1 + counts)
    slots = SlotMap(5, 1, np.arange(20, dtype=np.int32), pages)
    tokens = [token for start, count in edges for token in range(start, start + count)]
    assert apart(slots) == (len(set(tokens)) == len(tokens))
    assert apart(slots.without([True] * len(edges)))


@pytest.mark.parametrize(
    "ids",
    [
        [3, 1, 2],
        (3, 1, 2),
        np.array([3, 1, 2]),
        np.array([3, 1, 2], np.uint64),
        np.array([3, 0, 1, 0, 2], np.int8)[::2],
        torch.tensor([3, 1, 2]),
        torch.tensor([3, 1, 2], dtype=torch.int32),
    ],
    ids=lambda ids: f"{type(ids).__name__} {getattr(ids, 'dtype', '')}",
)
def test_block_ids_may_have_any_integer_type(ids: Any) -> None:
    blocks = slot_map(ids, 1, 1, 1).blocks
    assert blocks.tolist() == [3, 1, 2]
    assert blocks.dtype == np.int32
    assert blocks.flags.c_contiguous


@pytest.mark.parametrize("ids", [np.array([3, 1], np.int32), torch.tensor([3, 1], dtype=torch.int32)])
def test_a_table_stays_what_was_checked(ids: Any) -> None:
    slots = slot_map(ids, 1, 1, 1)
    ids[:] = 77
    assert slots.blocks.tolist() == [3, 1]


def test_the_largest_id_is_accepted() -> None:
    assert slot_map([2**31 - 1, 0], 1, 1, 1).blocks.tolist() == [2**31 - 1, 0]


# ---- refused


@pytest.mark.parametrize(
    "ids", [[1.0], [True], np.array([False]), ["1"], [[1, 2]], np.zeros((0, 2), int), 5, torch.tensor([True]), [2**70]]
)
def test_block_ids_of_other_types_are_rejected(ids: Any) -> None:
    with pytest.raises(TypeError, match="block IDs are a one-dimensional array of integers, not"):
        slot_map(ids, 0, 1, 1)


@pytest.mark.parametrize("ids", [[0, -1], [2**31], [2**63], torch.tensor([-7])], ids=str)
def test_impossible_block_ids_are_rejected(ids: Any) -> None:
    with pytest.raises(ValueError, match=r"block IDs from .*: they must be 0 or more and have at most 31 bits"):
        slot_map(ids, 0, 1, 1)


class OnDevice:
    """Fake IDs on an accelerator, with the attributes that are read."""

    class device:  # noqa: N801 - torch's name
        type = "cuda"


@pytest.mark.parametrize("ids", [OnDevice(), torch.zeros(2, dtype=torch.int32, device="meta")], ids=["cuda", "meta"])
def test_ids_on_a_device_are_rejected(ids: Any) -> None:
    with pytest.raises(TypeError, match="block IDs must be on the host to be validated, these are on"):
        slot_map(ids, 0, 1, 1)


@pytest.mark.parametrize(
    ("count", "page", "block", "tokens"),
    [(-1, 1, 1, None), (1, 0, 1, None), (1, 1, 0, None), (1, 2, 1, range(0, 2, 2))],
)
def test_impossible_sizes_are_rejected(count: int, page: int, block: int, tokens: range | None) -> None:
    with pytest.raises(ValueError, match="pages and blocks have at least one token, and a range of tokens has step 1"):
        slot_map([0, 1], count, page, block, tokens=tokens)


@pytest.mark.parametrize(
    ("position", "tokens"),
    [(-1, None), (1, None), (0, range(7)), (0, range(-1, 2)), (4, range(3, 6)), (4, range(4, 8)), (-3, range(4))],
)
def test_tokens_that_the_table_or_the_pages_do_not_have(position: int, tokens: range | None) -> None:
    """Two pages of three tokens (one, if they begin before the table), two blocks of three."""
    count = 1 if position < -1 else 2
    wanted = tokens or range(position, position + 3 * count)
    pages = range(position, position + 3 * count)
    if pages.start <= wanted.start and wanted.stop <= pages.stop and wanted.start >= 0:
        why = f"the {len(wanted)} tokens to copy need 3 blocks of 3 tokens: the block table has 2"
    else:
        outside = f"(tokens {pages.start} to {pages.stop})"
        why = f"tokens {wanted.start} to {wanted.stop} are outside of the pages {outside}"
    with pytest.raises(ValueError, match=re.escape(why)):
        slot_map([0, 1], count, 3, 3, position, tokens)


@pytest.mark.parametrize(
    ("position", "count", "page", "block"), [(2**62, 0, 1, 1), (-(2**62), 1, 1, 1), (0, 2, 2**61, 1), (0, 0, 1, 2**63)]
)
def test_positions_over_62_bits_are_rejected(position: int, count: int, page: int, block: int) -> None:
    with pytest.raises(ValueError, match="more than 62 bits"):
        slot_map([0], count, page, block, position, range(0))
    with pytest.raises(ValueError, match="more than 62 bits"):
        slot_map([], 0, 1, 2**62)


@pytest.mark.parametrize("skip", [[], [True], [True] * 3, [[True, False]]], ids=str)
def test_a_mask_of_another_shape_is_rejected(skip: Any) -> None:
    with pytest.raises(ValueError, match=r"the mask has the shape .*, and there are 2 pages"):
        slot_map([0, 1], 2, 1, 1).without(skip)


def test_requests_with_other_sizes_cannot_be_joined() -> None:
    one, page, block = slot_map([0], 1, 1, 1), slot_map([0], 0, 2, 1), slot_map([0], 1, 1, 2)
    for maps in ((), (one, page), (one, block)):
        with pytest.raises(ValueError, match="the requests have pages or blocks of different sizes"):
            joined_slots(*maps)


@pytest.mark.parametrize("page", [(0, -1, 2), (0, 2, 1), (0, 0, 4)], ids=str)
def test_tokens_that_a_page_does_not_have(page: tuple[int, int, int]) -> None:
    """Also of a skipped page, because the mask on a device may differ."""
    with pytest.raises(ValueError, match="tokens outside of pages of 3 tokens"):
        SlotMap(3, 2, np.zeros(4, np.int32), np.array([page], TOKENS), np.ones(1, np.uint8))


@pytest.mark.parametrize("position", [-2, 6, 2**63 - 1, -(2**63)])
def test_pages_that_the_table_does_not_have(position: int) -> None:
    pages = token_rows([position], 1, 3)
    with pytest.raises(ValueError, match="tokens outside of 4 blocks of 2 tokens"):
        SlotMap(3, 2, np.zeros(4, np.int32), pages)
    assert needed(SlotMap(3, 2, np.zeros(4, np.int32), pages, np.ones(1, np.uint8))) == 0
    assert needed(SlotMap(3, 2, np.zeros(4, np.int32), token_rows([min(max(position, -1), 5)], 1, 3))) == 1


def test_tables_that_were_not_checked_before_are_rejected() -> None:
    """Also by the checks of blocks, which read the table of blocks."""
    blocks = np.arange(4, dtype=np.int32)
    for check in (check_blocks, check_blocks_apart):
        for page in ([-2, 1, 3], [6, 0, 3], [2**63 - 1, 1, 2**63 - 1], [-(2**63), 1, 2**63 - 1], [0, 2, 1]):
            with pytest.raises(ValueError, match="tokens outside of the table of blocks"):
                check(4, 2, np.array([tuple(page)], TOKENS), blocks, b"")
        with pytest.raises(ValueError, match="block -1 does not exist: the cache has 4 blocks"):
            check(4, 2, token_rows([0], 0, 3), np.array([0, -1], np.int32), b"")
        with pytest.raises(ValueError, match="block_tokens: at least 1"):
            check(4, 0, token_rows([0], 0, 3), blocks, b"")
        with pytest.raises(ValueError, match="skip: 2 flags for 1 pages"):
            check(4, 2, token_rows([0], 0, 3), blocks, bytes(2))
        check(0, 2, token_rows([], 0, 0), blocks[:0], b"")
        check(2**62, 2, token_rows([0], 0, 3), blocks, b"")
        with pytest.raises(ValueError, match="block 0 does not exist: the cache has -1 blocks"):
            check(-1, 2, token_rows([0], 0, 3), blocks, b"")
