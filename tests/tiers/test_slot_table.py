"""Slots that are given to writes: free ones, in as few rows as the pages that left allow."""

from __future__ import annotations

import random
from itertools import islice
from typing import Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.tiers.disk.file_format import FrameExtent, extents_of
from pagetier.tiers.frame_files.slot_table import SlotTable

MARKS: Final = 2**32 - 1


def table_of(slots: str) -> SlotTable:
    """Returns a table with a slot for each letter: a free one for a dot."""
    return SlotTable(np.array([1 if slot != "." else 0 for slot in slots], np.uint32))


@pytest.mark.parametrize(
    ("slots", "counts", "taken"),
    [
        (".......", [2, 3], [0, 1, 2, 3, 4]),
        (".....x...x.........", [3], [6, 7, 8]),  # not the first row that is long enough
        (".....x...x..", [4, 4], [0, 1, 2, 3, 6, 7, 8, 4]),
        (".x...x..x.", [6], [2, 3, 4, 6, 7, 0]),  # long rows first: few parts
        ("..x..", [5], []),
    ],
)
def test_a_write_gets_a_row_that_it_fills(slots: str, counts: list[int], taken: list[int]) -> None:
    assert table_of(slots).take(range(2, 2 + len(counts)), counts, len(slots)) == taken


def test_slots_are_given_in_turn() -> None:
    """Pages that are stored one after the other lie behind each other where there is room."""
    table = SlotTable(np.zeros(40, np.uint32))
    assert [table.take([serial], [3], 40) for serial in (1, 2)] == [[0, 1, 2], [3, 4, 5]]
    table.release(1, [FrameExtent(0, 3)])
    assert table.take([3], [3], 40) == [6, 7, 8]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4) | st.integers(0, 30), max_size=30),
    st.sampled_from([1, MARKS - 5]),  # the second: marks begin again
)
def test_slots_that_are_given_were_free(acts: list[list[int] | int], serial: int) -> None:
    table, end, owned = SlotTable(np.zeros(48, np.uint32)), 40, dict[int, list[int]]()
    for act in acts:
        if isinstance(act, int):
            if owned:
                leaving = sorted(owned)[act % len(owned)]
                table.release(leaving, extents_of(owned.pop(leaving), 1))
        else:
            serials = range(serial, serial + len(act))
            slots = table.take(serials, act, end)
            free = end - sum(map(len, owned.values()))
            assert len(slots) == (sum(act) if sum(act) <= free else 0)
            assert set(slots).isdisjoint(slot for other in owned.values() for slot in other)
            assert len(set(slots)) == len(slots) and all(0 <= slot < end for slot in slots)
            left = iter(slots)
            for number, count in zip(serials, act, strict=True) if slots else ():
                owned[number] = list(islice(left, count))
            serial += len(act)
        assert table.used == sum(map(len, owned.values())) == end - table.free_below(end)
        assert all(table.begin_reading(number, extents_of(slots, 1)) for number, slots in owned.items())
        for number in owned:
            table.end_reading(number)


def test_pages_that_replace_others_at_random_stay_in_few_rows() -> None:
    """Compressed pages need various numbers of slots. A full tier has no more free slots than the next page needs."""
    choice = random.Random(61)
    slots, pages = 23 * 200, list[tuple[int, list[int]]]()
    table = SlotTable(np.zeros(slots, np.uint32))
    for serial in range(1, 1200):
        count = choice.choice((22, 23, 23, 24, 32))
        while table.free_below(slots) < count:
            leaving, taken = pages.pop(choice.randrange(len(pages)))
            table.release(leaving, extents_of(taken, 1))
        pages.append((serial, table.take([serial], [count], slots)))
    rows = [len(extents_of(sorted(taken), 1)) for _, taken in pages]
    assert sum(rows) / len(rows) < 3.0
