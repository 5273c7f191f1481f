"""Tests what the index knows of the uses of its pages: a new daemon uses it, and damage in it does no harm."""

from __future__ import annotations

import mmap
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from anonymous_segments import DAY_NS, attach
from core_records import disk_histories, histories
from index_with_disk import u32, u64
from learning_index import FRAME, LearningIndex, learn
from page_reservations import reserve
from pagetier.shm._core import (
    HISTORY_BYTES,
    HISTORY_LAYOUT,
    KEY_BYTES,
    NO_ENTRY,
    TierFlag,
    WriteResult,
    WriteRule,
)
from pagetier.shm.page_rows import PAGES_TO_WRITE

NO_KEY = bytes(KEY_BYTES)
PROMPT = list(range(6))
DEPTH_WORD = next(offset for name, offset, _ in HISTORY_LAYOUT.fields if name == "place") // 4 + 1
DEPTH_BITS = (1 << 24) - 1
Rows = npt.NDArray[Any]


def copied(engine: LearningIndex) -> Rows:
    """Returns the histories of all entries."""
    return histories(engine.memory.descriptors[0], engine.owner.header())


def adopted_again(engine: LearningIndex, *, learns: bool = True) -> None:
    """Lets a new daemon adopt the segments; their process lives on."""
    engine.owner = engine.memory.adopted(1 << engine.slot)
    if learns:
        engine.owner.learn_returns()


def depths(engine: LearningIndex) -> list[int]:
    """Returns the numbers of the entries' pages in their prompts, counted from 1, 0: not known."""
    words = copied(engine).view(np.uint32).reshape(-1, HISTORY_LAYOUT.size // 4)
    numbers: list[int] = (words[:, DEPTH_WORD] & DEPTH_BITS).tolist()
    return numbers


def test_a_new_daemon_knows_what_the_last_one_knew() -> None:
    engine = LearningIndex(64)
    for _ in range(3):
        engine.use(PROMPT)
    before = copied(engine)
    adopted_again(engine)
    used, after = before["uses"] > 0, copied(engine)
    for field in ("parent", "parent_life", "life", "seen", "children", "class", "cadence", "uses"):
        assert (before[field][used] == after[field][used]).all(), field
    assert sorted(after["uses"])[-6:] == [3] * 6 and (after["parent"] != NO_ENTRY).sum() == 5
    engine.check()


def hot_prompts(engine: LearningIndex, turns: range) -> None:
    """Uses prompts that return again and again and nearly fill the memory, and some that never return."""
    for turn in turns:
        for prompt in range(5):
            engine.use([prompt, *range(9)])
        engine.use([7 * turn, -1, -2])


def test_a_new_daemon_chooses_at_once_if_the_last_one_had_learned() -> None:
    engine = LearningIndex(64)
    hot_prompts(engine, range(400))
    assert engine.owner.eviction().learned
    adopted_again(engine)
    assert engine.owner.eviction().learned and not engine.owner.eviction().follows_lru
    engine.check()


@pytest.mark.parametrize("at", [0, 8, 16, 4096])
def test_a_damaged_table_is_learned_again(at: int) -> None:
    engine = LearningIndex(64)
    hot_prompts(engine, range(400))
    header = engine.owner.header()
    learned_at = header.at_histories + -(-header.entries * 40 // 4096) * 4096
    with mmap.mmap(engine.memory.descriptors[0], 0) as segment:
        assert any(segment[learned_at : learned_at + 16])
        segment[learned_at + at] ^= 1
    adopted_again(engine)
    assert not engine.owner.eviction().learned
    engine.check()


def everywhere(dice: random.Random, rows: Rows) -> None:
    rows.view(np.uint8)[:] = np.frombuffer(dice.randbytes(rows.nbytes), np.uint8)


def in_parents(dice: random.Random, rows: Rows) -> None:
    """Makes links that look true, most of them in circles."""
    rows["parent"] = [dice.randrange(len(rows)) for _ in rows]
    rows["parent_life"] = rows["life"][rows["parent"]]


def in_a_circle(dice: random.Random, rows: Rows) -> None:
    rows["parent"] = np.roll(np.arange(len(rows)), 1)
    rows["parent_life"] = rows["life"][rows["parent"]]


def out_of_range(dice: random.Random, rows: Rows) -> None:
    rows["parent"] = [dice.choice([len(rows), 2**31, NO_ENTRY - 1]) for _ in rows]
    rows["class"] = 0xFFFF
    rows["cadence"] = rows["uses"] = 0xFF
    rows["seen"] = [dice.randrange(2**32) for _ in rows]


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("damage", [everywhere, in_parents, in_a_circle, out_of_range])
@pytest.mark.parametrize("seed", range(3))
def test_no_damage_keeps_a_page_or_harms_the_daemon(
    damage: Callable[[random.Random, Rows], None], learns: bool, seed: int
) -> None:
    dice, engine = random.Random(seed), LearningIndex(64)
    learn(engine)
    for number in range(8):
        engine.use([number, *range(7)])
    rows = copied(engine)
    damage(dice, rows)
    os.pwrite(engine.memory.descriptors[0], rows.tobytes(), engine.owner.header().at_histories)
    adopted_again(engine, learns=learns)
    engine.check()
    assert engine.owner.header().pages > 40
    for number in range(50):
        engine.use([dice.randrange(8), *range(dice.randrange(9))])
        engine.use([1000 + number])
    engine.check()
    engine.owner.evict(64, 1000)
    assert engine.owner.header().pages == 0
    engine.check()


@pytest.mark.parametrize("learns", [False, True])
def test_the_number_of_a_page_is_that_in_its_prompt(learns: bool) -> None:
    engine = LearningIndex(64, learns=learns)
    keys = engine.keys(PROMPT)
    space = engine.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    sizes = u64(*[FRAME] * 6)

    def placed(*prompts: tuple[int, bytes, int]) -> tuple[bytes, bytes]:
        """Reserves the pages as these prompts. Returns their entries and serials."""
        reserved = reserve(engine.owner, engine.slot, space, 0, 1, DAY_NS, b"".join(keys), sizes, prompts)
        return reserved.entries, reserved.serials

    def numbers_of(entries: bytes) -> list[int]:
        return [depths(engine)[entry] for entry in np.frombuffer(entries, np.uint32)]

    entries, serials = placed((0, keys[2], 40), (3, b"", -1))
    assert numbers_of(entries) == [41, 42, 43, 0, 0, 0]
    entries, serials = placed((0, b"", -1), (3, keys[2], -1))
    assert numbers_of(entries) == [41, 42, 43, 44, 45, 46], "the second prompt follows the first one"
    engine.session.publish(entries, serials, 0)
    adopted_again(engine, learns=learns)
    assert numbers_of(entries) == [41, 42, 43, 44, 45, 46]


def test_a_page_that_left_is_forgotten() -> None:
    engine = LearningIndex(64)
    engine.use(PROMPT)
    engine.owner.flush(-1, TierFlag.BOTH)
    rows = copied(engine)
    assert not rows["seen"].any() and not rows["uses"].any() and (rows["parent"] == NO_ENTRY).all()
    assert depths(engine) == [0] * 64


# ---- on disk


def written(engine: LearningIndex) -> tuple[bytes, bytes]:
    """Writes all pages to disk. Returns their keys and histories."""
    rows = engine.owner.start_writes(1 << 20, 1000)
    pages = list(PAGES_TO_WRITE.read(rows))
    engine.owner.end_writes(rows, bytes([WriteResult.DONE]) * len(pages))
    return b"".join(page.key for page in pages), b"".join(page.history for page in pages)


def with_disk(frames: int) -> LearningIndex:
    engine = LearningIndex(frames)
    engine.owner.disk_open(1 << 10, WriteRule.THROUGH)
    return engine


def reported(keys: bytes, kept: bytes, frames: int = 64) -> LearningIndex:
    """Returns an index of which the disk reported these pages."""
    engine, pages = with_disk(frames), len(keys) // KEY_BYTES
    space = engine.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
    engine.owner.disk_report(keys, u64(*[FRAME] * pages), u32(*[space] * pages), u64(*range(1, pages + 1)))
    engine.owner.disk_histories(keys, kept, u64(*[10**9] * pages))
    return engine


def test_a_page_on_disk_starts_with_what_was_known() -> None:
    engine = with_disk(64)
    for _ in range(3):
        engine.use(PROMPT)
    before = copied(engine)
    keys, kept = written(engine)
    rows = disk_histories(kept)
    assert (rows["uses"] == 3).all() and (rows["cadence"] > 0).all() and set(rows["depth"]) == {0}
    for order in (1, -1):
        numbers = list(range(6))[::order]
        again = reported(
            b"".join(keys[n * KEY_BYTES : (n + 1) * KEY_BYTES] for n in numbers),
            b"".join(kept[n * HISTORY_BYTES : (n + 1) * HISTORY_BYTES] for n in numbers),
        )
        after = copied(again)
        known = after["uses"] > 0
        assert known.sum() == 6 and (after["uses"][known] == 3).all() and after["seen"][known].all()
        assert sorted(after["cadence"][known]) == sorted(before["cadence"][before["uses"] > 0])
        assert (after["parent"] != NO_ENTRY).sum() == 5
        again.check()


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_history_on_disk_does_no_harm(seed: int) -> None:
    dice, engine = random.Random(seed), with_disk(64)
    for number in range(6):
        engine.use([number, *range(5)])
    keys, kept = written(engine)
    rows = disk_histories(kept)
    rows["parent"] = rows["parent"][[dice.randrange(len(rows)) for _ in rows]]
    damaged = bytearray(rows.tobytes())
    for _ in range(40 * (seed % 2)):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    again = reported(keys, bytes(damaged))
    again.check()
    for number in range(6):
        again.use([number, *range(5)])
    again.check()
    again.owner.flush(-1, TierFlag.BOTH)
    assert again.owner.header().pages == again.owner.header().disk_pages == 0


def test_an_attached_process_lives_through_it() -> None:
    engine = LearningIndex(64)
    engine.use(PROMPT)
    adopted_again(engine)
    assert engine.has(PROMPT) == [True] * 6 and attach(engine.owner, 1) == engine.slot
