"""One match over several groups compared with a simple reference: the hit, the pins, and the order of eviction."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core_records import increased
from group_fixtures import EVERYTHING, Chain, Grouped, Location, agreed, key_of
from pagetier.shm._core import GROUPS, KEY_BYTES, Pins

M, D, N = Location.MEMORY, Location.DISK, Location.NOWHERE
MOST_PAGES = 12

places = st.one_of(
    st.lists(st.sampled_from([M, M, M, M, M, D, N]), max_size=MOST_PAGES),
    st.lists(st.sampled_from([M, D]), max_size=MOST_PAGES),
    st.builds(lambda m, d: [M] * m + [D] * d, st.integers(0, MOST_PAGES), st.integers(0, MOST_PAGES)),
)
needs = st.one_of(st.just(EVERYTHING), st.just(1), st.integers(0, 20))
limits = st.one_of(st.just(EVERYTHING), st.integers(0, 80))
examples = settings(max_examples=int(os.environ.get("TEST_EXAMPLES", "150")), deadline=None)


@st.composite
def chains(draw: st.DrawFn) -> list[Chain]:
    """Draws groups with pages of their own. Some groups have equal page sizes."""
    count = draw(st.integers(1, 4))
    sizes = draw(st.sampled_from([[1, 1, 1, 1], [1, 2, 4, 8], [2, 3, 4, 6], [16, 16, 48, 16], [5, 7, 3, 1]]))
    return [
        Chain(sizes[at], draw(needs), range(64 * at, 64 * at + len(there)), there)
        for at, there in enumerate(draw(st.lists(places, min_size=count, max_size=count)))
    ]


def full(there: list[Location], page_tokens: int = 1, first: int = 0) -> Chain:
    return Chain(page_tokens, EVERYTHING, range(first, first + len(there)), there)


@examples
@given(chains(), limits)
@example([full([M] * 12), Chain(1, 1, range(64, 76), [M, D] * 3 + [N] * 6)], EVERYTHING)
@example([full([M] * 12), Chain(1, 3, range(64, 76), [M, M, M, M, N, M, M, D, M, N, M, M])], EVERYTHING)
def test_a_match_finds_and_pins_the_pages_of_the_reference(chains: list[Chain], limit: int) -> None:
    world = Grouped(chains)
    tokens, reach, pins = world.match(limit)
    assert (tokens, reach) == (agreed(chains, limit, M), agreed(chains, limit, D))
    for chain, held in zip(chains, pins, strict=True):
        needed = chain.needed(tokens)
        assert list(held.context) == list(chain.names[needed.start : needed.stop])
        assert len(held) == held.available_pages == held.asked == len(needed)
        with world.session.match(Pins, None, b"".join(map(key_of, held.context))) as again:
            assert (again.entries, again.serials) == (held.entries, held.serials)
    world.leave_memory()
    assert world.in_memory() == world.named(tokens), "other pages are pinned than the hit needs"
    for held in pins:
        held.release()
    assert world.sound()
    world.memory.close()


@examples
@given(chains(), limits)
def test_used_pages_are_evicted_last_from_their_tail(chains: list[Chain], limit: int) -> None:
    """In groups that need all of their pages, all pages found may be stamped, even if the hit needs fewer."""
    world = Grouped(chains)
    tokens, reach, pins = world.match(limit)
    del pins
    used = world.named(tokens) | world.named(reach)
    found = {name for chain in chains if chain.needs >= reach for name in chain.names}
    for leaving in (world.leave_memory(), world.leave_disk()):
        left = [name for name in leaving if name in used or name not in found]
        first_used = next((at for at, name in enumerate(left) if name in used), len(left))
        assert used.issuperset(left[first_used:])
        ends = [world.end_of(name) for name in left[first_used:]]
        assert ends == sorted(ends, reverse=True)
    world.memory.close()


@examples
@given(places)
def test_one_group_of_full_attention_equals_a_plain_match(there: list[Location]) -> None:
    world = Grouped([full(there, page_tokens=16)])
    tokens, reach, (pins,) = world.match()
    with world.session.match(Pins, None, b"".join(map(key_of, range(len(there))))) as plain:
        assert (tokens, reach) == (16 * len(plain), 16 * plain.available_pages)
        assert (pins.entries, pins.serials) == (plain.entries, plain.serials)
    pins.release()
    assert world.sound()
    world.memory.close()


def test_a_page_may_occur_twice() -> None:
    """It is pinned once for each occurrence, in two groups or in one."""
    twice = full([M, M, M])
    repeated = Chain(1, 2, [1, 1, 1], [M, M, M])
    world = Grouped([twice, twice, repeated])
    tokens, _, pins = world.match()
    assert tokens == 3 and [list(held.context) for held in pins] == [[0, 1, 2], [0, 1, 2], [1, 1]]
    for held in pins[:2]:
        held.release()
    world.leave_memory()
    assert world.in_memory() == {1}
    pins[2].release()
    assert world.sound()


def test_a_match_is_counted_when_the_caller_reports_it() -> None:
    world = Grouped([full([M] * 8), Chain(2, 1, range(64, 68), [M, M, N, N])])
    before = world.counts()
    tokens, _, pins = world.match()
    assert tokens == 4 and [len(held) for held in pins] == [4, 1]
    assert world.counts() == before
    world.session.count_lookup(5, 4, 3, 2, 1, 6, 7, 8, 9)
    assert increased(before, world.counts()) == {
        "lookups": 1,
        "hit_pages": 5,
        "miss_pages": 4,
        "memory_tokens": 3,
        "disk_tokens": 2,
        "remote_tokens": 6,
        "missed_tokens": 1,
        "memory_slower_tokens": 7,
        "disk_slower_tokens": 8,
        "remote_slower_tokens": 9,
    }


@pytest.mark.parametrize("broken", [(0,), (1,), (0, 1)])
def test_a_context_that_cannot_be_sliced_leaves_nothing_pinned(broken: tuple[int, ...]) -> None:
    world = Grouped([full([M] * 3), Chain(1, 1, range(64, 67), [M, M, M])])
    contexts = [None if at in broken else chain.names for at, chain in enumerate(world.chains)]
    asked = ((context, b"".join(map(key_of, range(3))), 1, EVERYTHING) for context in contexts)
    with pytest.raises(TypeError):
        world.session.match_groups(Pins, tuple(asked), EVERYTHING)
    assert len(world.leave_memory()) == 6
    assert world.sound()


def test_huge_numbers_do_not_overflow() -> None:
    """Neither token counts nor common multiples overflow."""
    world = Grouped([full([M] * 3)])
    keys = b"".join(map(key_of, range(3)))
    big, prime = 2**32 - 1, 2**31 - 1
    for sizes, expected in (
        ([big], 3 * big),
        ([big, 1], 0),
        ([big, prime, 2**32 - 5], 0),
        ([prime, 2 * prime], 2 * prime),
    ):
        for limit in (2**64 - 1, 2**63):
            asked = tuple((range(3), keys, size, 2**64 - 1) for size in sizes)
            assert world.session.match_groups(Pins, asked, limit)[:2] == (expected, expected)
    assert world.sound()


def test_a_retired_session_finds_nothing() -> None:
    world = Grouped([full([M] * 3)])
    assert world.session.retire()
    tokens, reach, (pins,) = world.match()
    assert (tokens, reach, len(pins), len(pins.context), pins.pinned) == (0, 0, 0, 0, False)


def test_invalid_arguments_are_rejected() -> None:
    world = Grouped([full([M] * 3)])
    session = world.session
    for groups, wrong in (
        ((), "0 groups: there must be 1 to 64"),
        (((range(1), bytes(KEY_BYTES), 1, 1),) * (GROUPS + 1), f"{GROUPS + 1} groups"),
        (((range(1), bytes(33), 1, 1),), "33 bytes are no whole number"),
        (((range(1), bytes(KEY_BYTES), 1, 1), (range(1), bytes(KEY_BYTES), 0, 1)), "1 token or more"),
    ):
        with pytest.raises(ValueError, match=wrong):
            session.match_groups(Pins, groups, 1)
    wrong_types: list[object] = [[], (1,), ((range(1), bytes(KEY_BYTES)),), ((range(1), "x", 1, 1),)]
    for given_groups in wrong_types:
        with pytest.raises(TypeError):
            session.match_groups(Pins, given_groups, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        session.match_groups(int, ((range(1), bytes(KEY_BYTES), 1, 1),), 1)  # type: ignore[type-var]
    assert world.sound()
