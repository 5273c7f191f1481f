"""Tests the eviction policy that learns when pages return, through the daemon's binding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

import pytest

from learning_index import LEARNING, LearningIndex, PromptKind, learn
from pagetier.shm._core import Pins, ReserveOutcome, TierFlag, WriteResult, WriteRule
from pagetier.shm.page_rows import PAGES_TO_WRITE


def sessions(dice: random.Random, count: int) -> Iterator[list[int]]:
    """Yields prompts of sessions that grow: a few that return at once, and many that never return."""
    running = [[1000 * number] for number in range(1, 9)]
    for number in range(count):
        if dice.random() < 0.5:
            prompt = dice.choice(running)
            prompt.append(number)
            if len(prompt) > 12:
                running[running.index(prompt)] = [1000 * (100 + number)]
            yield list(prompt)
        else:
            yield [-number - 1, *range(dice.randrange(6))]


def test_pages_that_return_stay_where_lru_would_evict_them() -> None:
    hits = {}
    for learns in (False, True):
        engine = LearningIndex(64, learns=learns)
        total = 0
        for turn in range(400):  # four prompts of 10 pages return after 60 pages that never do
            for prompt in range(4):
                total += engine.use([prompt, *range(9)])
            for number in range(60):
                engine.use([-1, turn * 60 + number])
        hits[learns] = total
        engine.check()
    assert hits[True] > 3 * hits[False] + 4000, hits


@pytest.mark.parametrize("seed", range(4))
def test_no_page_leaves_before_one_that_is_useless_without_it(seed: int) -> None:
    dice, engine = random.Random(seed), LearningIndex(64)
    learn(engine)
    prompts = list(sessions(dice, 1500))
    for prompt in prompts:
        engine.use(prompt)
    engine.check()
    for prompt in prompts:
        there = engine.has(prompt)
        assert there == sorted(there, reverse=True), (prompt, there)


@pytest.mark.parametrize("seed", range(3))
def test_random_use_keeps_the_index_whole(seed: int) -> None:
    dice, engine = random.Random(seed), LearningIndex(32)
    learn(engine)
    pinned: list[Pins] = []
    for step, prompt in enumerate(sessions(dice, 2000)):
        engine.use(prompt)
        if dice.random() < 0.05:
            pinned.append(engine.session.match(Pins, None, b"".join(engine.keys(prompt))))
        if dice.random() < 0.2 and pinned:
            pinned.pop(dice.randrange(len(pinned))).release()
        if dice.random() < 0.01:
            engine.owner.flush(-1, TierFlag.BOTH)
        if dice.random() < 0.02:
            engine.owner.evict(dice.randrange(32), 100)
        if dice.random() < 0.01:
            engine.owner.forget_returns()
            engine.owner.learn_returns()
        if step % 50 == 0:
            engine.check()
    engine.check()


def test_pinned_pages_stay() -> None:
    engine = LearningIndex(32)
    learn(engine)
    engine.use([1, 2, 3])
    with engine.session.match(Pins, None, b"".join(engine.keys([1, 2, 3]))) as pins:
        kept = len(pins)
        learn(engine, seed=1)
        assert engine.has([1, 2, 3])[:kept] == [True] * kept
    engine.check()


def test_a_page_that_was_used_again_does_not_leave_before_it_is_written() -> None:
    """No store says that it was used: the evictor has to notice."""
    engine = LearningIndex(256)
    engine.owner.disk_open(1000, WriteRule.SECOND)
    learn(engine)
    assert [engine.use([1]), engine.use([1])] == [0, 1]
    learn(engine, seed=1)
    assert engine.owner.eviction().learned and engine.has([1]) == [True]
    assert engine.owner.unwritten().pages == 1
    engine.check()


def test_a_prompt_that_is_stored_page_by_page_does_not_count_as_used_again() -> None:
    """A store stamps the page before its first one, so that it stays."""
    engine = LearningIndex(256)
    engine.owner.disk_open(1000, WriteRule.SECOND)
    for session in range(300):
        keys = engine.keys([session, *range(15)])
        for page, before in zip(keys, [b"", *keys], strict=False):
            assert engine.store([page], before) == bytes([ReserveOutcome.GRANTED])
    assert engine.owner.eviction().learned and engine.owner.unwritten().pages == 0
    engine.check()


def test_pages_without_a_prompt_are_stored_whatever_they_are_worth() -> None:
    engine = LearningIndex(32)
    learn(engine)
    for number in range(200):
        outcomes = engine.store([sha256(bytes([number])).digest()], b"", PromptKind.NONE)
        assert outcomes == bytes([ReserveOutcome.GRANTED])
    engine.check()


def test_a_client_that_does_not_say_is_never_answered_that_a_page_was_left_out() -> None:
    engine = LearningIndex(32)
    learn(engine)
    for number in range(200):
        keys = engine.keys([5000 + number, 1, 2])
        assert engine.store(keys, b"", PromptKind.UNKNOWN) == bytes([ReserveOutcome.GRANTED]) * 3


@pytest.mark.parametrize("seed", range(3))
def test_clients_that_do_not_say_get_what_lru_gives(seed: int) -> None:
    """They store the new pages of a prompt, and what was there before looks like the end of another one."""
    dice, engines = random.Random(seed), [LearningIndex(64, learns=learns) for learns in (False, True)]
    learn(engines[1])
    for engine in engines:
        for number in range(LEARNING):  # the last rounds are of such clients
            engine.use([5000 + number], kind=PromptKind.UNKNOWN)
    hits = [[engine.use(prompt, kind=PromptKind.UNKNOWN) for engine in engines] for prompt in sessions(dice, 1500)]
    assert sum(lru for lru, _ in hits) > 500
    assert all(lru == ours for lru, ours in hits)
    assert not engines[1].owner.eviction().learned
    engines[1].check()


def test_most_pages_of_a_round_decide_whether_the_policy_chooses() -> None:
    engine = LearningIndex(32)
    learn(engine)
    for few in (True, False, True):
        for number in range(LEARNING):
            rare = number % 4 == 0
            engine.use([number + 10_000 * few], kind=PromptKind.UNKNOWN if rare is few else PromptKind.KNOWN)
        assert engine.owner.eviction().learned is few


def test_a_store_is_refused_and_not_left_out_where_no_page_may_leave() -> None:
    engine = LearningIndex(32)
    learn(engine)
    engine.owner.flush(-1, TierFlag.BOTH)
    prompt = list(range(32))
    engine.use(prompt)
    with engine.session.match(Pins, None, b"".join(engine.keys(prompt))) as pins:
        assert len(pins) == 32 and engine.owner.eviction().learned
        assert engine.store(engine.keys([99, 1]), b"") == bytes([ReserveOutcome.REFUSED_FULL]) * 2
    assert engine.owner.eviction().left_out == 0


@pytest.mark.parametrize("kind", PromptKind)
def test_a_store_evicts_no_page_that_it_contains(kind: PromptKind) -> None:
    engine = LearningIndex(4)
    for number in range(4):
        engine.use([number], kind=kind)
    coldest, new = engine.keys([0]), engine.keys([9])
    assert engine.store(new + coldest, b"", kind) == bytes([ReserveOutcome.GRANTED, ReserveOutcome.PRESENT])
    engine.check()


def test_an_index_of_one_page_learns() -> None:
    engine = LearningIndex(1)
    learn(engine)
    assert engine.owner.eviction().learned
    for number in range(100):
        engine.use([number % 3])
    assert engine.owner.header().pages == 1
    engine.check()


def test_pages_of_no_worth_are_left_out_and_take_no_room() -> None:
    engine = LearningIndex(64)
    for _ in range(400):
        for prompt in range(5):
            engine.use([prompt, *range(9)])
        engine.use([len(engine.keys([1])) * 7, 8])
    left_out = 0
    for number in range(300):
        for prompt in range(5):
            engine.use([prompt, *range(9)])
        outcomes = engine.store(engine.keys([-number - 1, *range(30)]), b"")
        left_out += outcomes.count(ReserveOutcome.LEFT_OUT)
    assert left_out > 1000
    engine.check()


def test_no_page_is_left_out_where_a_disk_keeps_what_leaves_memory() -> None:
    engine = LearningIndex(64)
    engine.owner.disk_open(1000, WriteRule.THROUGH)
    for number in range(700):
        for prompt in range(5):
            engine.use([prompt, *range(9)])
        outcomes = engine.store(engine.keys([-number - 1, *range(30)]), b"")
        assert outcomes == bytes([ReserveOutcome.GRANTED]) * len(outcomes)
        pages = engine.owner.start_writes(1 << 20, 100)
        engine.owner.end_writes(pages, bytes([WriteResult.DONE]) * PAGES_TO_WRITE.count(pages))
    assert engine.owner.eviction().learned
    engine.check()
