"""Tests when the worker's half reports stores and loads as ended or failed."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import pytest

from pagetier.client import Client
from pagetier.client.engines.vllm.messages import GroupLoad, LoadCommand
from pagetier.client.match import MatchHandle
from running_daemon import RunningDaemon, eventually
from vllm_caches import aliased, heads_first
from vllm_worker_world import ends, load_command, same, slow_of, store_command, worker_of


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("16MiB", "4KiB") as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as attached:
        yield attached


def test_a_request_that_keeps_its_blocks_is_reported_once(client: Client) -> None:
    cache = heads_first()
    worker = worker_of(client, cache, salt=token_hex(8))
    worker.store([store_command(worker, 0, (5, 6), held=True), store_command(worker, 0, (7,), held=True, prompt=1)])
    stored: list[str] = []

    def named() -> bool:
        stored.extend(worker.finished(False).stored)
        return not worker._storing

    assert eventually(named, 10.0)
    assert stored == ["storing"]
    assert not worker.finished(False).stored


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
    assert done.loaded == done.failed == {"loading"}
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
    loaded = False
    while not loaded:
        finished = loading.finished(False)
        loaded = bool(finished.loaded)
        assert not finished.failed
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
