"""Tests when the worker's half reports stores and loads as ended or failed."""

from __future__ import annotations

from secrets import token_hex
from unittest import mock

import msgspec
import torch

from eventually import eventually
from pagetier.client import Client
from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand, StoreCommand
from pagetier.client.engines.vllm.worker import WorkerHalf
from pagetier.client.match import MatchHandle
from running_daemon import RunningDaemon
from vllm_caches import aliased, heads_first
from vllm_worker_world import ends, keys_of, load_command, same, slow_of, store_command, worker_of

ARENA_FRAME = "4KiB"


def test_a_request_that_keeps_its_blocks_is_reported_once(client: Client) -> None:
    cache = heads_first()
    worker = worker_of(client, cache, salt=token_hex(8))
    worker.store([store_command(worker, 0, (5, 6), held=True), store_command(worker, 0, (7,), held=True, prompt=1)])
    stored: list[str] = []

    def named() -> bool:
        stored.extend(worker.finished(False).stored)
        return not worker._storing

    assert eventually(named)
    assert stored == ["storing"]
    assert not worker.finished(False).stored


def numbered(worker: WorkerHalf, number: int, blocks: tuple[int, ...]) -> StoreCommand:
    return msgspec.structs.replace(store_command(worker, 0, blocks, prompt=number), request=f"r{number}")


def test_commands_of_a_step_are_stored_together_and_reported_apart(client: Client) -> None:
    """A store costs as much as the copies of many pages, and at times each request completes one page in a step."""
    cache, salt = heads_first(), token_hex(8)
    cache.fill(1)
    worker = worker_of(client, cache, salt=salt)
    commands = [numbered(worker, 1, (5, 0)), numbered(worker, 2, (6,)), numbered(worker, 3, (0, 7))]
    copier = worker.rank_groups[0].copier
    with mock.patch.object(copier, "store", side_effect=copier.store) as store:
        worker.store(commands)
    assert store.call_count == 1
    ends(worker)
    assert worker.counters.taken()["stored_pages"] == 3
    for number, page, block in ((1, 0, 5), (2, 0, 6), (3, 1, 7)):
        loading = worker_of(client, target := heads_first(), salt=salt)
        with client.match(keys_of(worker, 0, 2, number)[page : page + 1]) as match:
            loading.load([LoadCommand("loading", (GroupLoad(0, match.to_handle(), (9,)),))])
        ends(loading)
        assert all(torch.equal(one, two) for one, two in zip(target.page(9), cache.page(block), strict=True))


def test_a_page_that_two_requests_complete_in_a_step_is_stored_once(client: Client) -> None:
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    worker.store([store_command(worker, 0, (block,)) for block in (5, 6)])
    ends(worker)
    assert worker.counters.taken()["stored_pages"] == 1


def test_a_store_that_takes_too_long_loses_few_pages_of_other_requests(client: Client) -> None:
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    commands = [numbered(worker, number, tuple(range(1, 21))) for number in range(8)]
    copier = worker.rank_groups[0].copier
    with mock.patch.object(copier, "store", side_effect=copier.store) as store:
        worker.store(commands)
    assert [len(call.args[0]) for call in store.call_args_list] == [80, 80]
    ends(worker)


def test_an_evicted_page_fails_the_whole_load(client: Client) -> None:
    first, second, _ = aliased()
    worker = worker_of(client, first, second, salt=token_hex(8))
    worker.store([store_command(worker, at, (at + 1, at + 3)) for at in range(2)])
    ends(worker)
    command = load_command(worker, client, (0, (10, 11)), (1, (12, 13)))
    pages = command.groups[1].pages
    worse = MatchHandle(pages.segments_id, pages.page_tokens, pages.entries, bytes(8) + pages.serials[8:])
    worker.load([LoadCommand("loading", (command.groups[0], GroupLoad(1, worse, command.groups[1].blocks)))])
    done = ends(worker)
    assert done.loaded == done.failed == {"loading"} and not done.copied
    assert done.blocks == {10, 11, 12, 13}
    assert worker.counters.taken()["failed_loads"] == 1


def test_pages_of_another_daemon_are_not_loaded(client: Client) -> None:
    worker = worker_of(client, heads_first(), salt=token_hex(8))
    command = LoadCommand("loading", (GroupLoad(0, MatchHandle(1, 16, bytes(8), bytes(16)), (3, 4)),))
    worker.load([command])
    assert ends(worker).failed == {"loading"}


def test_a_load_is_reported_when_all_groups_have_ended(client: Client) -> None:
    """One group ends long before the other."""
    salt, blocks = token_hex(8), tuple(range(1, 17))
    sources, targets = aliased()[:2], aliased()[:2]
    for block in blocks:
        sources[0].put(block, block)
    storing = worker_of(client, *sources, salt=salt)
    storing.store([store_command(storing, 0, blocks), store_command(storing, 1, (20,))])
    ends(storing)
    loading = worker_of(client, *targets, salt=salt, settings=slow_of(targets[0], client, 40))
    loading.load([load_command(loading, client, (0, blocks), (1, (20,)))])
    copied: dict[str, float] = {}
    while not copied:
        finished = loading.finished(False)
        copied.update(finished.copied)
        assert not finished.failed and copied.keys() == finished.loaded
    assert copied["loading"] > 0.1, "at 40 pages a second"
    loading.load([load_command(loading, client, (1, (20,)))])
    assert ends(loading).copied["loading"] > 0
    assert all(same(sources[0].page(block), targets[0].page(block)) for block in blocks)


def test_a_request_is_reported_when_all_its_blocks_were_read(client: Client) -> None:
    first, second, _ = aliased()
    settings = slow_of(first, client, 30)
    worker = worker_of(client, first, second, salt=token_hex(8), settings=settings)
    commands = [
        store_command(worker, 0, (1,), held=True),
        store_command(worker, 1, tuple(range(2, 12)), held=True),
    ]
    worker.store(commands)
    named: frozenset[str] = frozenset()
    while not named:
        named = worker.finished(False).stored
    assert not worker._storing, "a store is still in progress"


def test_close_ends_all_copies(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        worker = worker_of(client, heads_first(), salt=token_hex(8))
        worker.store([store_command(worker, 0, (1, 2, 3))])
        worker.close()
        assert not client.attached
    assert eventually(lambda: not daemon.header().open_entries)
