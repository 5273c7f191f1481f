"""Layer groups: the pages that a hit needs, the pages that a store may skip, and matches over all groups."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_records import increased
from disk_daemon import write_through
from eventually import PATIENCE_S, eventually
from fake_disk import FakeDiskDaemon
from keyed_pages import assert_exact, prompt, store
from pagetier.client import ChunkedAttention, Client, FullAttention, GroupMatch, Keys, Recurrent, SlidingWindow
from pagetier.client.adapters import Group, GroupKeys, Lookup, adopt, count_lookup
from pagetier.client.groups import grain_of
from pagetier.shm._core import AttachmentCounts, Observer
from running_daemon import namespace

PAGE = 4000
FULL, WINDOW, STATE = FullAttention(16), SlidingWindow(16, 40), Recurrent(48)
GROUPS = (FULL, WINDOW, STATE)
TOKENS = 384

unhurried = settings(deadline=None)
any_group = st.one_of(
    st.builds(FullAttention, st.integers(1, 9)),
    st.builds(SlidingWindow, st.integers(1, 9), st.integers(1, 40)),
    st.builds(ChunkedAttention, st.integers(1, 9), st.integers(1, 40)),
    st.builds(Recurrent, st.integers(1, 9)),
)


def asked(tokens: int = TOKENS, prompt: int = 0) -> list[GroupKeys]:
    """Returns the keys of one prompt in each group."""
    spaces = [namespace(page_tokens=group.page_tokens, group=type(group).__name__) for group in GROUPS]
    prompt_ids = range(prompt << 20, (prompt << 20) + tokens)
    return [GroupKeys(group, space.keys(prompt_ids)) for group, space in zip(GROUPS, spaces, strict=True)]


def store_all(client: Client, *parts: Keys) -> None:
    for keys in parts:
        assert store(client, keys, PAGE, timeout=PATIENCE_S).stored == len(keys)


def counts_of(daemon: FakeDiskDaemon) -> AttachmentCounts:
    """Returns the counters of all clients."""
    index, locks, _ = daemon.memory.descriptors
    return Observer(index, locks).counts()


def loads(client: Client, found: GroupMatch) -> None:
    """Loads the pages of each group and compares them."""
    for match, group_keys, first in zip(found.matches, found.groups, found.start_pages, strict=True):
        assert match.keys == group_keys.keys[first : first + len(match)]
        out = np.zeros((len(match), PAGE), np.uint8)
        assert client.load(match, out) == len(match)
        assert_exact(match.keys, out)


@pytest.fixture
def daemon() -> Iterator[FakeDiskDaemon]:
    with FakeDiskDaemon() as running:
        yield running


# ---- what a group says


@pytest.mark.parametrize(
    ("group", "tokens", "pages"),
    [
        (FullAttention(16), 0, range(0)),
        (FullAttention(16), 64, range(4)),
        (SlidingWindow(16, 16), 64, range(3, 4)),
        (SlidingWindow(16, 17), 64, range(3, 4)),
        (SlidingWindow(16, 18), 64, range(2, 4)),
        (SlidingWindow(16, 1), 64, range(4, 4)),
        (SlidingWindow(16, 1000), 64, range(4)),
        (Recurrent(16), 64, range(3, 4)),
        (Recurrent(16), 0, range(0)),
    ],
)
def test_what_a_hit_needs(group: Group, tokens: int, pages: range) -> None:
    assert group.pages(tokens) == pages


@unhurried
@given(any_group, st.integers(0, 30))
def test_pages_are_those_that_hold_the_tokens(group: Group, boundary: int) -> None:
    tokens = boundary * group.page_tokens
    held = {token // group.page_tokens for token in range(max(0, tokens - group.needs), tokens)}
    assert set(group.pages(tokens)) == held


@unhurried
@given(any_group, st.integers(0, 20), st.integers(1, 24))
def test_useful_pages_are_those_of_some_hit(group: Group, page: int, grain: int) -> None:
    step = math.lcm(grain, group.page_tokens)
    ends = (page + 1) * group.page_tokens
    hits = range(0, ends + 50 + step, step)
    assert group.useful(page, grain) == any(page in group.pages(tokens) for tokens in hits)


def test_the_grain_is_common_to_all() -> None:
    assert grain_of(GROUPS) == 48
    assert grain_of([SlidingWindow(6, 1), Recurrent(4)]) == 12


@unhurried
@given(any_group, st.integers(0, 200))
def test_an_engine_keeps_no_more_than_a_hit_may_need(group: Group, tokens: int) -> None:
    assert max(0, tokens - group.needs) <= group.first_kept(tokens) <= tokens


def test_chunked_attention_keeps_the_chunk_of_the_next_token() -> None:
    assert [ChunkedAttention(4, 8).first_kept(tokens) for tokens in (0, 7, 8, 13, 16)] == [0, 0, 8, 8, 16]


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, 2**31])
def test_groups_without_tokens_are_rejected(wrong: Any) -> None:
    of_two = (lambda size: SlidingWindow(4, size), lambda size: ChunkedAttention(4, size))
    for make in (FullAttention, Recurrent, lambda size: SlidingWindow(size, 4), *of_two):
        with pytest.raises(ValueError, match=r"must be (1 or more|an integer)"):
            make(wrong)


def test_keys_of_another_page_length_are_rejected(client: Client) -> None:
    keys = asked()[0].keys
    with pytest.raises(ValueError, match=r"FullAttention.* have 32 tokens, those of .* 16"):
        GroupKeys(FullAttention(32), keys)
    with pytest.raises(ValueError, match="at least one group"):
        client.match_groups([])
    with pytest.raises(ValueError, match="65 groups"):
        client.match_groups(asked()[:1] * 65)


# ---- a match


def test_all_groups_agree(client: Client) -> None:
    """Full attention and the window have 20 pages, the state has two snapshots: the hit ends where all three agree."""
    full, window, state = asked()
    store_all(client, full.keys[:20], window.keys[:20], state.keys[:2], state.keys[4:5])
    with client.match_groups([full, window, state]) as found:
        assert (found.tokens, found.available_tokens, found.start_pages) == (240, 240, (0, 12, 4))
        assert [len(match) for match in found.matches] == [15, 3, 1] and len(found) == 19
        assert repr(found) == "<GroupMatch 240 tokens of 3 groups, 0.1 MiB>"
        loads(client, found)
    assert not found.pinned and repr(found) == "<GroupMatch 240 tokens of 3 groups, released>"
    for limit, tokens in (
        (None, 240),
        (240, 240),
        (239, 96),
        (96, 96),
        (95, 48),
        (47, 0),
        (0, 0),
        (-5, 0),
        (2**80, 240),
    ):
        with client.match_groups([full, window, state], limit) as found:
            assert found.tokens == found.available_tokens == tokens


def test_all_groups_fall_back_when_one_cannot_be_loaded(client: Client) -> None:
    """An engine discards what it loaded of the other groups, and matches again with a smaller limit."""
    groups = asked()
    store_all(client, *(one.keys for one in groups))
    with client.match_groups(groups) as found:
        assert found.tokens == TOKENS
        failed = found.start_pages[1] * WINDOW.page_tokens
    with client.match_groups(groups, limit=failed) as shorter:
        assert shorter.tokens == 336
        loads(client, shorter)


def test_another_process_adopts_the_matches_of_all_groups(client: Client) -> None:
    groups = asked()
    store_all(client, *(one.keys for one in groups))
    with client.match_groups(groups) as found:
        handed = pickle.loads(pickle.dumps(found))
        assert handed == found.to_handle()
        adopted = [adopt(client.session, handover) for handover in handed]
    assert [len(match) for match in adopted] == [24, 3, 1]
    for match in adopted:
        match.release()


def test_a_lookup_counts_what_the_longest_hit_would_need(daemon: FakeDiskDaemon, client: Client) -> None:
    """The hit is 240 of 384 tokens with 15 + 3 + 1 pages; the rest would need 9 + 3 + 1 more."""
    full, window, state = groups = asked()
    store_all(client, full.keys[:20], window.keys[:20], state.keys[:5])
    before = counts_of(daemon)
    with client.find_groups(groups) as found:
        assert (found.tokens, found.asked) == (240, TOKENS)
        assert found.lookup == Lookup(19, 13, 240, 0, 144)
    with client.find_groups(groups, limit=100) as found:
        assert (found.tokens, found.asked, found.lookup) == (96, 96, Lookup(6 + 3 + 1, 0, 96, 0, 0))
    assert counts_of(daemon) == before
    client.match_groups(groups)
    grown = {
        "lookups": 1,
        "hit_pages": 19,
        "miss_pages": 13,
        "memory_tokens": 240,
        "missed_tokens": 144,
    }
    assert increased(before, counts_of(daemon)) == grown


def test_without_a_daemon_all_groups_miss(tmp_path: Path) -> None:
    with Client(tmp_path / "missing", timeout=0.01) as alone:
        with alone.match_groups(asked()) as found:
            assert (found.tokens, found.available_tokens, len(found), found.start_pages) == (0, 0, 0, (0, 0, 0))
            assert [match.keys for match in found.matches] == [one.keys[:0] for one in asked()]
            assert repr(found) == "<GroupMatch 0 tokens of 3 groups, 0.0 MiB>"
            assert alone.prefetch(found).ready
            count_lookup(alone.session, found.lookup)
        with pytest.raises(ValueError, match="at least one group"):
            alone.match_groups([])


# ---- with a disk


def test_one_prefetch_requests_all_pages_on_disk(daemon: FakeDiskDaemon, client: Client) -> None:
    full, window, state = asked(192)
    store_all(client, full.keys, window.keys, state.keys)
    daemon.write_out()
    daemon.bring_in(full.keys[:6])
    daemon.bring_in(window.keys[3:6])
    daemon.bring_in(state.keys[1:2])
    with client.match_groups([full, window, state]) as found:
        assert (found.tokens, found.available_tokens) == (96, 192)
        assert repr(found) == "<GroupMatch 96 tokens of 3 groups, 0.0 MiB, 96 more tokens on disk>"
        prefetch = client.prefetch(found, timeout=PATIENCE_S)
        peer, request = daemon.next_fetch()
        wanted = [full.keys[at] for at in range(6, 9)] + [full.keys[9], window.keys[9], full.keys[10], window.keys[10]]
        assert request.keys == b"".join([*wanted, full.keys[11], window.keys[11], state.keys[3]])
        assert (prefetch.pages, request.timeout) == (10, PATIENCE_S)
        daemon.fulfil(peer, request)
        assert eventually(lambda: prefetch.ready) and prefetch.wait(0) == 10
    with client.match_groups([full, window, state]) as found:
        assert (found.tokens, found.available_tokens, found.missing()) == (192, 192, b"")
        assert client.prefetch(found).ready and daemon.fetches.empty()
        loads(client, found)
    assert daemon.write_out() == 10 + 10, "no page is pinned any more"


def test_a_real_daemon_with_a_real_disk() -> None:
    with write_through() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        groups = asked(144)
        for one in groups:
            store_all(client, one.keys)
            daemon.until_written()
        store_all(client, prompt(1, 16))  # these pages evict all others
        daemon.until_written()  # the disk only reads from here on
        with client.match_groups(groups) as found:
            assert (found.tokens, found.available_tokens) == (0, 144)
            assert client.prefetch(found).wait(PATIENCE_S) == 9 + 3 + 1
        with client.match_groups(groups) as found:
            assert (found.tokens, found.available_tokens, found.start_pages) == (144, 144, (0, 6, 2))
            loads(client, found)
