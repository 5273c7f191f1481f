"""Tests which pages of a request are stored in a step, and under which keys."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pagetier.client.engines.vllm.messages import StoreCommand, prompts_of
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.request_state import RequestState
from pagetier.client.engines.vllm.store_planner import (
    blocks_of_others,
    late_store_commands,
    store_commands,
    take_blocks,
)
from pagetier.client.groups import FullAttention, Group, Recurrent, SlidingWindow
from pagetier.client.keys import Keys
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Prompt
from running_daemon import namespace
from vllm_steps import PAGE, hashed, request, step

LOADS, LOADS_NOTHING = {"has_sync_kv_loads": True}, {"has_sync_kv_loads": False}  # what vLLM says from 0.30 on


def group(kind: Group, hashes: int = 1, *, strong: bool = True) -> PagedGroup:
    return PagedGroup(kind, namespace(kind.page_tokens, group=repr(kind)), hashes, strong)


def tracked(kind: Group, *, tokens: int, computed: int, table: list[int], hashes: int | None = None) -> RequestState:
    one = RequestState(request(tokens, computed, hashes), [group(kind)])
    one.tables = [table]
    return one


def planned_stores(one: RequestState, output: Any) -> list[tuple[int, tuple[int, ...]]]:
    """Returns the first page and the blocks of each store command, and verifies the keys of its pages."""
    commands = list(store_commands({"one": one}, output))
    for command in commands:
        keys = one.keys[command.group]
        assert command.keys == keys[command.first : command.first + len(command.blocks)].data
        before = keys[command.first - 1] if command.first else b""
        assert command.before == (before if isinstance(one.groups[command.group].kind, FullAttention) else None)
    return [(command.first, command.blocks) for command in commands]


def test_pages_of_several_requests_name_the_page_before_each_of_them() -> None:
    first = StoreCommand("a", 0, 0, bytes(2 * KEY_BYTES), (1, 2, 3, 4), "", before=b"")
    second = StoreCommand("b", 0, 5, bytes(KEY_BYTES), (5, 6), "", before=b"k")
    assert prompts_of([first, second]) == (Prompt(0, b"", 0), Prompt(2, b"k", 5))
    assert prompts_of([StoreCommand("a", 0, 0, bytes(KEY_BYTES), (1,), "")]) == ()


def test_complete_pages_are_stored_once() -> None:
    one = tracked(FullAttention(PAGE), tokens=18, computed=0, table=[11, 12, 13, 14, 15])
    assert planned_stores(one, step(10)) == [(0, (11, 12))]
    one.request.num_computed_tokens = 10
    assert planned_stores(one, step(8)) == [(2, (13, 14))]
    one.request.num_computed_tokens = 18
    assert planned_stores(one, step(1)) == []


def test_a_step_that_completes_no_page_asks_for_no_keys() -> None:
    """Most steps of an answer complete none, and the keys take most of the time."""
    one = tracked(FullAttention(PAGE), tokens=9, computed=0, table=[11, 12, 13])
    asked = 0

    class Counting(RequestState):
        @property
        def keys(self) -> list[Keys]:
            nonlocal asked
            asked += 1
            return super().keys

    one.__class__ = Counting
    assert planned_stores(one, step(9)) == [(0, (11, 12))]
    before = asked
    for computed in (9, 10):
        one.request.num_computed_tokens = computed
        assert not list(store_commands({"one": one}, step(1)))
    assert asked == before
    one.request.num_computed_tokens, one.request.block_hashes = 11, hashed(3)
    assert planned_stores(one, step(1)) == [(2, (13,))]
    one.request.num_computed_tokens, one.stored[0] = 0, 0
    assert planned_stores(one, step(9)) == [(0, (11, 12))], "a step of a preempted request was left out"


def test_pages_that_end_with_drafts_are_not_complete() -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=13, table=[11, 12, 13, 14])
    one.stored = [3]
    assert planned_stores(one, step(3, drafts=2)) == []
    assert planned_stores(one, step(3, drafts=0)) == [(3, (14,))]


def test_pages_are_stored_once_they_have_a_key() -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=8, table=[11, 12, 13], hashes=2)
    one.stored = [2]
    assert planned_stores(one, step(4)) == []
    one.request.block_hashes, one.request.num_computed_tokens = hashed(3), 12
    assert planned_stores(one, step(1)) == [(2, (13,))]


def test_blocks_that_a_window_has_left_are_not_stored() -> None:
    one = tracked(SlidingWindow(PAGE, 6), tokens=40, computed=20, table=list(range(11, 21)))
    assert planned_stores(one, step(4)) == [(3, (14, 15, 16))]  # token 15 is the first that token 20 attends to


def test_null_blocks_are_left_out() -> None:
    one = tracked(SlidingWindow(PAGE, 6), tokens=20, computed=16, table=[0, 0, 0, 14, 15])
    assert planned_stores(one, step(4)) == [(2, (0, 14, 15))]


@pytest.mark.parametrize(("ends", "wanted"), [(8, [(1, (12,))]), (7, []), (9, [])])
def test_a_state_is_complete_at_the_end_of_a_step(ends: int, wanted: list[tuple[int, tuple[int, ...]]]) -> None:
    one = tracked(Recurrent(PAGE), tokens=20, computed=0, table=[0, 12, 13])
    assert planned_stores(one, step(ends)) == wanted


def test_offered_states_are_stored() -> None:
    one = tracked(Recurrent(PAGE), tokens=20, computed=0, table=[0, 12, 13])
    offers = {"one": [(0, 7, 8), (1, 8, 8), (0, 0, 4), (0, 9, 10), (0, 5, 400)]}
    assert planned_stores(one, step(9, offers=offers)) == [(1, (7,))]
    one.stored = [2]
    assert planned_stores(one, step(9, offers=offers)) == []


def test_late_commands_keep_the_blocks() -> None:
    one = tracked(FullAttention(PAGE), tokens=17, computed=16, table=[11, 12, 13, 14])
    one.stored = [2]
    (command,) = late_store_commands(one, [[11, 12, 13, 14]])
    assert command.retains_blocks and command.first == 2 and command.blocks == (13, 14)


def test_a_page_with_the_last_token_is_not_complete() -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=16, table=[11, 12, 13, 14])
    (command,) = late_store_commands(one, [[11, 12, 13, 14]])
    assert command.blocks == (11, 12, 13)


def test_loading_requests_and_states_get_no_late_commands() -> None:
    one = tracked(FullAttention(PAGE), tokens=17, computed=16, table=[])
    one.loading = True
    assert late_store_commands(one, [[11, 12, 13, 14]]) == []
    assert late_store_commands(tracked(Recurrent(PAGE), tokens=17, computed=16, table=[]), [[0, 0, 0, 14]]) == []


def output(**fields: Any) -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        **{"scheduled_new_reqs": [], "num_scheduled_tokens": {}, "scheduled_cached_reqs": cached} | fields
    )


def test_new_blocks_of_new_requests_are_written() -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=0, table=[])
    new = SimpleNamespace(req_id="one", block_ids=([11, 12, 13],), num_computed_tokens=8)
    assert take_blocks({"one": one}, output(scheduled_new_reqs=[new])) == {13}
    assert one.tables == [[11, 12, 13]]


def test_blocks_of_untracked_requests_are_written_too() -> None:
    new = SimpleNamespace(req_id="new", block_ids=([0, 21],), num_computed_tokens=8)
    cached = SimpleNamespace(req_ids=["old"], new_block_ids=[([22],)], resumed_req_ids=set())
    assert take_blocks({}, output(scheduled_new_reqs=[new], scheduled_cached_reqs=cached)) == {21, 22}


@pytest.mark.parametrize(("resumed", "table"), [(False, [11, 12, 13]), (True, [12, 13])])
def test_a_running_request_extends_its_table_and_a_resumed_one_replaces_it(resumed: bool, table: list[int]) -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=0, table=[11])
    cached = SimpleNamespace(
        req_ids=["one", "other"], new_block_ids=[([12, 13],), None], resumed_req_ids={"one"} if resumed else set()
    )
    assert take_blocks({"one": one}, output(scheduled_cached_reqs=cached)) == {12, 13}
    assert one.tables == [table]


def test_zeroed_and_copied_blocks_are_written() -> None:
    copies = [SimpleNamespace(src_block_id=3, dst_block_id=4)]
    assert take_blocks({}, output(new_block_ids_to_zero=[0, 7], kv_cache_block_copies=copies)) == {4, 7}


def test_a_page_of_several_hashes_has_the_key_of_the_last() -> None:
    one = RequestState(request(24), [group(FullAttention(2 * PAGE), 2), group(SlidingWindow(PAGE, 5))])
    hashes = one.request.block_hashes
    for count in (1, 2, 3, 6):
        one.request.block_hashes = hashes[:count]
        for keys, (kind, ends) in zip(
            one.keys, zip(one.groups, (hashes[1:count:2], hashes[:count]), strict=True), strict=True
        ):
            assert keys.data == kind.keys(ends).data


def test_weak_hashes_are_hashed_again() -> None:
    weak = group(FullAttention(PAGE), strong=False)
    assert weak.keys([b"12345678"]).data == weak.namespace.keys_of([b"12345678"]).data


def test_a_session_continued_after_another_token_has_new_keys() -> None:
    """Its last hashes have changed, and the pages after them must be stored."""
    one = tracked(FullAttention(PAGE), tokens=12, computed=12, table=[1, 2, 3])
    first = one.keys[0]
    one.stored = [3]
    one.request.block_hashes = [*hashed(2), *hashed(4, b"other")[2:]]
    again = one.keys[0]
    assert again.data == one.groups[0].keys(one.request.block_hashes).data
    assert again[:2] == first[:2] and again[2] != first[2]
    assert one.stored == [2]


def test_a_session_may_temporarily_have_fewer_hashes() -> None:
    one = tracked(FullAttention(PAGE), tokens=12, computed=12, table=[1, 2, 3])
    assert len(one.keys[0]) == 3
    one.request.block_hashes = hashed(2)
    assert len(one.keys[0]) == 2
    one.request.block_hashes = hashed(4)
    assert one.keys[0].data == one.groups[0].keys(hashed(4)).data


@pytest.mark.parametrize(
    ("loaded_here", "reported", "said", "stores"),
    [(0, False, {}, 4), (8, True, {}, 4), (8, False, {}, 0), (8, False, LOADS, 0), (8, False, LOADS_NOTHING, 4)],
    ids=["nothing loaded", "load reported", "load in the step that computes", "and vLLM says so", "vLLM's own hit"],
)
def test_pages_are_not_stored_in_the_step_in_which_another_connector_loads(
    loaded_here: int, reported: bool, said: dict[str, bool], stores: int
) -> None:
    one = tracked(FullAttention(PAGE), tokens=16, computed=loaded_here, table=[11, 12, 13, 14])
    one.computed, one.is_new = 0, True
    if reported:
        one.loaded()
    output = step(16 - loaded_here)
    output.scheduled_new_reqs = []
    output.scheduled_cached_reqs = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    vars(output).update(said)
    take_blocks({"one": one}, output)
    assert sum(len(blocks) for _, blocks in planned_stores(one, output)) == stores
    assert one.is_excluded == (not stores)


def rows(*numbers: int) -> list[list[Any]]:
    """Returns vLLM's blocks of one group; 0 is its null block."""
    return [[SimpleNamespace(block_id=number, is_null=not number) for number in numbers]]


def test_another_connector_loads_into_the_blocks_of_requests_that_are_not_computed() -> None:
    one = tracked(FullAttention(PAGE), tokens=18, computed=0, table=[])
    one.computed = PAGE
    given = {"one": rows(3, 0, 5, 6), "unknown": rows(9)}
    waiting, computed = SimpleNamespace(num_scheduled_tokens={}), step(10)
    assert list(blocks_of_others({"one": one}, given, waiting)) == [5, 6]
    one.request.num_computed_tokens = PAGE
    assert list(blocks_of_others({"one": one}, given, computed)) == []
    one.request.num_computed_tokens = 3 * PAGE  # the other connector loads in the step that computes the rest
    assert list(blocks_of_others({"one": one}, given, computed)) == [5, 6]


def test_a_request_that_ends_before_it_was_computed_stores_nothing() -> None:
    """Another connector may still load its tokens, which vLLM counts as computed already."""
    one = tracked(FullAttention(PAGE), tokens=18, computed=16, table=[])
    one.is_new = True
    assert late_store_commands(one, [[1, 2, 3, 4, 5]]) == []
    one.is_new = False
    assert late_store_commands(one, [[1, 2, 3, 4, 5]])
