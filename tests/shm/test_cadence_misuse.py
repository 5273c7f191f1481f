"""Tests the policy that learns when pages return with clients whose stores do not fit together, or are huge."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import sha256

import numpy as np
import pytest

import page_reservations
from anonymous_segments import DAY_NS
from core_records import lock_words
from learning_index import FRAME, LearningIndex, PromptKind, learn
from pagetier.shm._core import KEY_BYTES, Pins, ReserveOutcome

FAR = 2**63  # a huge tick
NO_PARENT = bytes(KEY_BYTES)
A, B, C = (sha256(name).digest() for name in (b"A", b"B", b"C"))


def has(engine: LearningIndex, key: bytes) -> bool:
    """Returns whether a page is in memory."""
    with engine.session.match(Pins, None, key) as pins:
        return bool(len(pins))


def reserve(engine: LearningIndex, keys: bytes, begins: list[int], parents: list[bytes]) -> bytes:
    """Reserves pages of some prompts in one request. Returns their outcomes."""
    space = engine.owner.space(NO_PARENT, "test", 16, 0, 0)
    sizes = np.full(len(keys) // KEY_BYTES, FRAME, np.uint64).tobytes()
    prompts = tuple((begin, parent, -1) for begin, parent in zip(begins, parents, strict=True))
    reserved = page_reservations.reserve(engine.owner, engine.slot, space, 0, 1, DAY_NS, keys, sizes, prompts)
    return reserved.outcomes


def hot_prompts(engine: LearningIndex, turn: int) -> None:
    """Uses prompts that return again and again and nearly fill the memory, and one that never returns."""
    for prompt in range(6):
        engine.use([prompt, *range(9)])
    engine.use([1000 + turn, turn])


@pytest.mark.parametrize("circle", [[A, B], [A, B, C]])
def test_pages_that_are_before_each_other_leave(circle: list[bytes]) -> None:
    engine = LearningIndex(32)
    learn(engine)
    engine.store(circle, b"")
    engine.store([circle[0]], circle[-1])
    learn(engine, seed=1)
    assert not any(has(engine, key) for key in circle)
    engine.check()


def test_the_page_before_a_store_stays_while_room_is_made() -> None:
    engine, grown = LearningIndex(64), 0
    for turn in range(400):
        hot_prompts(engine, turn)
    for number in range(100):
        hot_prompts(engine, 400 + number)
        keys = engine.keys([-number - 1, *range(12)])
        before = engine.store(keys[:1], b"")
        for page in range(1, 11, 2):
            engine.next_tick()  # otherwise it is not older than the pages that come
            outcomes = engine.store(keys[page : page + 2], keys[page - 1])
            if before[-1] == outcomes[0] == ReserveOutcome.GRANTED:
                grown += 1
                assert has(engine, keys[page - 1]), (number, page)
            before = outcomes
    assert grown > 0
    engine.check()


def test_a_tick_from_the_future_keeps_no_page() -> None:
    engine = LearningIndex(32)
    learn(engine)
    engine.store([A, B], b"")
    with mmap.mmap(engine.memory.descriptors[1], 0) as segment:
        ticks = lock_words(segment, 32)["tick"]
        ticks[:] = FAR
        del ticks
    learn(engine, seed=1)
    assert not has(engine, A) and not has(engine, B)


def least_seconds(prepared: Iterable[Callable[[], object]]) -> float:
    """Returns the processor time of the shortest of some runs, which others disturbed least."""
    seconds = []
    for run in prepared:
        began = time.thread_time()
        run()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def huge_store(pages: int) -> Callable[[], object]:
    engine, keys = LearningIndex(512), os.urandom(pages * KEY_BYTES)
    learn(engine)

    def run() -> None:
        assert reserve(engine, keys, [0], [NO_PARENT]).count(ReserveOutcome.GRANTED) == 512, "all that fit"

    return run


@pytest.mark.wall_clock
def test_the_time_of_a_store_grows_with_its_pages() -> None:
    """Sixteen times the pages may take four times as long a page. With their square it would be sixteen times."""
    seconds = [least_seconds(huge_store(pages) for _ in range(5)) for pages in (2_500, 40_000)]
    assert seconds[1] < 4 * 16 * seconds[0], seconds


@pytest.mark.wall_clock
def test_many_prompts_in_one_request_take_no_more_time_than_one() -> None:
    """A walk over all entries for each prompt would take a hundred times as long."""
    engine = LearningIndex(16384, learns=False)
    reserve(engine, os.urandom(16384 * KEY_BYTES), [0], [NO_PARENT])  # all are being written

    def store(begins: list[int]) -> Callable[[], object]:
        return partial(reserve, engine, os.urandom(2000 * KEY_BYTES), begins, [NO_PARENT] * len(begins))

    seconds = [least_seconds(store(begins) for _ in range(5)) for begins in ([0], list(range(2000)))]
    assert seconds[1] < 20 * seconds[0], seconds


@pytest.mark.parametrize("learns", [False, True])
def test_a_request_never_evicts_pages_of_its_own_other_prompts(learns: bool) -> None:
    engine = LearningIndex(32, learns=learns)
    learn(engine)
    old = [sha256(bytes([number])).digest() for number in range(16)]
    for key in old:
        engine.store([key], b"", PromptKind.NONE)
    new = os.urandom(KEY_BYTES * 32)
    outcomes = reserve(engine, b"".join(old) + new, [*range(16), 16], [NO_PARENT] * 17)
    assert outcomes[:16] == bytes([ReserveOutcome.PRESENT]) * 16
    assert all(has(engine, key) for key in old)
    engine.check()


@pytest.mark.parametrize("begins", [[1], [0, 0], [0, 2, 1], [0, 9], [0, 2**32 - 1]])
def test_prompts_that_do_not_divide_the_pages_are_rejected(begins: list[int]) -> None:
    with pytest.raises(ValueError, match="do not divide"):
        reserve(LearningIndex(32), bytes(4 * KEY_BYTES), begins, [NO_PARENT] * len(begins))


def test_the_key_before_a_prompt_has_the_length_of_a_key() -> None:
    with pytest.raises(ValueError, match="has 31 bytes"):
        reserve(LearningIndex(32), bytes(4 * KEY_BYTES), [0, 2], [NO_PARENT, bytes(31)])
