"""Tests hints and kept pages in the eviction policy, through the daemon's binding."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from anonymous_segments import DAY_NS
from elapsed import processor_s
from learning_index import FRAME, LearningIndex, learn
from pagetier.shm._core import NO_ENTRY, HintKind, ReserveOutcome, TierFlag

FOREVER_NS = 2**64 - 1
ME, OTHER = 1000, 2000


def keys_of(engine: LearningIndex, *prompts: list[int]) -> bytes:
    return b"".join(key for prompt in prompts for key in engine.keys(prompt))


def keep(engine: LearningIndex, *prompts: list[int], uid: int = ME, most: int = 32, ttl_ns: int = FOREVER_NS) -> int:
    return engine.owner.keep(uid, ttl_ns, most, NO_ENTRY, keys_of(engine, *prompts))


def pass_through(engine: LearningIndex, pages: int, name: int = -1_000_000) -> None:
    for number in range(pages):
        engine.use([name - number])


@pytest.mark.parametrize("learned", [True, False], ids=["learned", "in the order of LRU"])
def test_kept_pages_are_evicted_last(learned: bool) -> None:
    engine = LearningIndex(64)
    if learned:
        learn(engine)
    prompts = [[number, *range(4)] for number in range(4)]
    for prompt in prompts:
        engine.use(prompt)
    assert keep(engine, *prompts[:2]) == 10
    pass_through(engine, 500)
    engine.owner.evict(54, 1000)
    assert all(all(engine.has(prompt)) for prompt in prompts[:2])
    assert not any(any(engine.has(prompt)) for prompt in prompts[2:])
    engine.check()


def test_pages_that_are_kept_no_longer_leave() -> None:
    engine = LearningIndex(64)
    engine.use([1, 2, 3])
    assert keep(engine, [1, 2, 3]) == 3
    assert engine.owner.unkeep(OTHER, NO_ENTRY, keys_of(engine, [1, 2, 3])) == 0, "another user keeps them"
    assert engine.owner.kept().frames == 3
    assert engine.owner.unkeep(ME, NO_ENTRY, keys_of(engine, [1, 2, 3])) == 3
    assert engine.owner.kept() == (0, 0)
    pass_through(engine, 100)
    assert not any(engine.has([1, 2, 3]))
    engine.check()


def test_a_keep_ends_after_its_time() -> None:
    engine = LearningIndex(64)
    engine.use([1, 2, 3])
    keep(engine, [1, 2, 3], ttl_ns=1)
    assert engine.owner.kept().frames == 0
    pass_through(engine, 100)
    assert not any(engine.has([1, 2, 3]))
    engine.check()


def test_the_oldest_keep_ends_where_the_share_is_exceeded() -> None:
    engine = LearningIndex(64)
    prompts = [[number, 1, 2, 3] for number in range(4)]
    for prompt in prompts:
        engine.use(prompt)
        assert keep(engine, prompt, most=8) == 4
    assert engine.owner.kept() == (8, 2)
    pass_through(engine, 100)
    assert [all(engine.has(prompt)) for prompt in prompts] == [False, False, True, True]
    engine.owner.keep_at_most(4)
    assert engine.owner.kept() == (4, 3)
    engine.check()


def test_one_request_keeps_its_head_within_the_share() -> None:
    engine = LearningIndex(64)
    prompt = list(range(20))
    engine.use(prompt)
    assert keep(engine, prompt, most=8) == 8
    pass_through(engine, 100)
    assert engine.has(prompt) == [True] * 8 + [False] * 12
    engine.check()


def test_a_user_who_keeps_much_ends_its_own_keeps_and_not_those_of_others() -> None:
    engine = LearningIndex(64)
    engine.use([100, 1])
    assert keep(engine, [100, 1], uid=OTHER, most=16) == 2
    for number in range(40):
        engine.use([number])
        keep(engine, [number], most=16)
    assert engine.owner.kept().frames == 16
    assert engine.owner.unkeep(OTHER, NO_ENTRY, keys_of(engine, [100, 1])) == 2, "the other user's pages are kept"
    engine.check()


def seconds_of_keeping(most: int) -> float:
    """Returns the processor time of a request to keep 2,000 pages where another user keeps 222, one by one."""
    engine = LearningIndex(4096)
    for number in range(222):
        engine.use([number])
        keep(engine, [number], uid=OTHER, most=222)
    engine.use([-1, *range(2000)])
    keys = keys_of(engine, [-1, *range(2000)])
    return processor_s(lambda: engine.owner.keep(ME, FOREVER_NS, most, NO_ENTRY, keys))


@pytest.mark.wall_clock
def test_pages_beyond_the_share_take_little_more_time_than_others() -> None:
    """A comparison of all keeps with each other for each page would take a hundred times as long."""
    room, none = (min(seconds_of_keeping(most) for _ in range(2)) for most in (4096, 222))
    assert none < 30 * room, (room, none)


@pytest.mark.parametrize("learned", [True, False], ids=["learned", "in the order of LRU"])
def test_an_arena_full_of_kept_pages_takes_a_store(learned: bool) -> None:
    engine = LearningIndex(64)
    if learned:
        learn(engine)
    engine.owner.flush(-1, TierFlag.BOTH)
    for number in range(16):
        engine.use([number, 1, 2, 3])
        assert keep(engine, [number, 1, 2, 3], most=64) == 4
    outcomes = engine.store(engine.keys([1000, 1, 2]), b"")
    assert outcomes == bytes([ReserveOutcome.GRANTED]) * 3
    assert 50 <= engine.owner.kept().frames < 64
    assert engine.owner.kept().ended_early > 0
    engine.check()


def test_hints_and_keeps_have_no_effect_with_lru() -> None:
    engine = LearningIndex(64, learns=False)
    engine.use([1, 2, 3])
    assert engine.owner.hint(HintKind.OVER, DAY_NS, keys_of(engine, [1, 2, 3])) == 0
    assert keep(engine, [1, 2, 3]) == 0
    assert engine.owner.unkeep(ME, NO_ENTRY, keys_of(engine, [1, 2, 3])) == 0
    engine.owner.keep_at_most(0)
    assert not engine.owner.learns


def test_hints_for_pages_that_do_not_exist_are_not_counted_as_given() -> None:
    engine = LearningIndex(64)
    engine.use([1, 2])
    assert engine.owner.hint(HintKind.OVER, DAY_NS, keys_of(engine, [1, 2, 3, 4])) == 2
    assert keep(engine, [1, 2, 3, 4]) == 2


def test_pages_of_a_session_that_is_over_leave_first() -> None:
    """The hints were right for a while: so they are believed, also those that come after the store."""
    dice, engine = random.Random(1), LearningIndex(128)
    for turn in range(8000):
        if turn > 100:
            back = turn - 50 - dice.randrange(50)
            if back % 4 == 0:
                engine.use([back])
        engine.use([turn], HintKind.NONE if turn % 8 == 4 else HintKind.OVER if turn % 4 else HintKind.WITHIN_20)
        if turn % 8 == 4:
            engine.owner.hint(HintKind.WITHIN_20, DAY_NS, keys_of(engine, [turn]))
    engine.check()
    assert engine.owner.learns
    last = range(7900, 7960)
    over = [engine.has([turn])[0] for turn in last if turn % 4]
    returning = [engine.has([turn])[0] for turn in last if not turn % 4]
    assert sum(returning) > 0.9 * len(returning) and sum(over) < 0.5 * len(over), (returning, over)


def kept_of_those_that_are_over(engine: LearningIndex, wrong_from: int) -> float:
    """Returns the share of pages that stay for a while although an engine says, rightly, that their sessions are over.

    Each fourth session of four engines returns. All hints of the engines from the number `wrong_from` on are wrong.
    """
    dice, kept = random.Random(1), list[bool]()
    for turn in range(4000):
        back = (turn - 50 - dice.randrange(50)) // 4 * 4
        for number in range(4):
            first = number * 1_000_000
            if turn > 100 and turn % 4 == 0:
                engine.use([first + back])
            returns = (turn % 4 == 0) == (number < wrong_from)
            engine.use([first + turn], HintKind.WITHIN_20 if returns else HintKind.OVER)
        if turn > 2000 and turn % 20 == 0:
            kept += [engine.has([turn - ago])[0] for ago in range(39, 79, 4)]
    return sum(kept) / len(kept)


def test_wrong_hints_of_engines_lower_the_weight_of_those_of_all() -> None:
    right, wrong = (kept_of_those_that_are_over(LearningIndex(128), wrong_from) for wrong_from in (4, 1))
    assert right < 0.1 < wrong, (right, wrong)


def test_a_hint_expires() -> None:
    engine = LearningIndex(64)
    engine.use([1])
    assert engine.owner.hint(HintKind.OVER, 1, keys_of(engine, [1])) == 1
    assert engine.owner.hint(HintKind.NONE, 1, keys_of(engine, [1])) == 1
    with pytest.raises(ValueError, match="hint 6 does not exist"):
        engine.owner.hint(HintKind.KEEP, 1, keys_of(engine, [1]))


def relearn(engine: LearningIndex) -> bool:
    engine.owner.forget_returns()
    engine.owner.learn_returns()
    return True


def disturb(dice: random.Random, engine: LearningIndex, keys: bytes) -> None:
    """Does something at random that concerns hints and kept pages."""
    kinds, owner = list(HintKind)[: HintKind.KEEP], engine.owner
    acts: list[Callable[[], object]] = [
        lambda: owner.hint(dice.choice(kinds), dice.choice([1, DAY_NS]), keys),
        lambda: owner.keep(
            dice.randrange(3), dice.choice([1, DAY_NS, FOREVER_NS]), dice.choice([0, 8, 48]), NO_ENTRY, keys
        ),
        lambda: owner.unkeep(dice.choice([0, 1, NO_ENTRY]), NO_ENTRY, keys),
        lambda: owner.evict(dice.randrange(48), 100),
        lambda: dice.random() < 0.1 and owner.flush(-1, TierFlag.BOTH),
        lambda: dice.random() < 0.1 and relearn(engine),
    ]
    dice.choice(acts)()


@pytest.mark.parametrize("seed", range(3))
def test_random_hints_keep_the_index_whole(seed: int) -> None:
    dice, engine = random.Random(seed), LearningIndex(48)
    for step in range(3000):
        prompt = [dice.randrange(40), *range(dice.randrange(5))]
        engine.use(prompt, dice.choice(list(HintKind)[: HintKind.KEEP + 1]))
        if dice.random() < 0.6:
            disturb(dice, engine, keys_of(engine, prompt))
        if step % 50 == 0:
            engine.check()
    engine.check()


def test_more_keeps_than_there_are_numbers() -> None:
    engine = LearningIndex(1024)
    for number in range(600):
        engine.use([number])
        assert keep(engine, [number], most=1024) == 1, number
    assert 200 < engine.owner.kept().frames <= 255
    engine.check()


def test_keys_in_memory_are_those_of_the_namespace() -> None:
    engine = LearningIndex(64)
    engine.use([1, 2, 3])
    assert engine.owner.keys_in_memory(0) == keys_of(engine, [1, 2, 3])
    with pytest.raises(ValueError, match="does not exist"):
        engine.owner.keys_in_memory(2)


def test_a_store_that_is_to_be_kept_is_never_left_out() -> None:
    engine = LearningIndex(64)
    outcomes = {HintKind.NONE: b"", HintKind.KEEP: b""}
    for number in range(500):
        for prompt in range(5):
            engine.use([prompt, *range(9)])
        hint = HintKind.KEEP if number % 2 else HintKind.NONE
        outcomes[hint] += engine.store(engine.keys([-number - 1, *range(30)]), b"", hint=hint)
    assert ReserveOutcome.LEFT_OUT in outcomes[HintKind.NONE]
    assert ReserveOutcome.LEFT_OUT not in outcomes[HintKind.KEEP]


def test_pages_of_several_frames_count_as_such() -> None:
    engine = LearningIndex(64)
    engine.store(engine.keys([1, 2]), b"", size=3 * FRAME)
    assert keep(engine, [1, 2], most=5) == 1
    assert engine.owner.kept().frames == 3
    engine.check()
