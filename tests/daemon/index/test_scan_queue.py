"""Tests the queue of long walks: equal requests share the next walk, and the loop is free in between."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from pagetier.daemon.common import loop_clock
from pagetier.daemon.index.scan_queue import ScanQueue
from virtual_time_loop import OwnTimeLoop

LONG_S = 0.03


class World:
    """A loop with long walks, and the requests and replies of them."""

    def __init__(self, loop: OwnTimeLoop) -> None:
        self.loop = loop
        self.walks = ScanQueue(self.loop)
        self.began: list[float] = []
        self.replies: list[tuple[int, int]] = []

    def ask(self, client: int, what: str = "walk", seconds: float = LONG_S) -> None:
        self.walks.ask(what, lambda: self._walk(seconds), lambda number: self.replies.append((client, number)))

    def _walk(self, seconds: float) -> int:
        self.began.append(self.loop.time())
        self.loop.passes(seconds)
        return len(self.began)

    def run(self, act: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(act)

    async def answered(self, number: int) -> None:
        while len(self.replies) < number:
            await loop_clock.pause(0.005)


@pytest.fixture
def world(virtual_time: OwnTimeLoop) -> Iterator[World]:
    there = World(virtual_time)
    yield there
    there.walks.close()


def test_the_first_walk_is_done_at_once(world: World) -> None:
    world.ask(1)
    assert world.replies == [(1, 1)]


def test_requests_after_a_long_walk_share_the_next(world: World) -> None:
    world.ask(1)
    for client in range(2, 50):
        world.ask(client)
    assert world.replies == [(1, 1)]
    world.run(world.answered(49))
    assert world.replies[1:] == [(client, 2) for client in range(2, 50)]
    assert world.began[1] - world.began[0] >= 11 * LONG_S


def test_short_walks_are_done_at_once(world: World) -> None:
    for client in range(5):
        world.ask(client, seconds=0.0)
    assert world.replies == [(client, client + 1) for client in range(5)]


def test_one_waiting_walk_is_done_each_turn(world: World) -> None:
    """However short the walks are: those of a crowd in one turn would take long."""
    turns: list[int] = []

    async def turning() -> None:
        while len(world.replies) < 21:
            turns.append(len(world.replies))
            await loop_clock.give_way()

    world.ask(0)
    for client in range(20):
        world.ask(client + 1, str(client), seconds=0.0)
    world.loop.passes(11 * LONG_S)
    world.run(turning())
    assert set(range(1, 21)) <= set(turns)


def test_requests_after_a_failed_walk_are_answered(world: World) -> None:
    def failing() -> int:
        raise MemoryError

    world.ask(0)
    world.walks.ask("fails", failing, lambda _: None)
    world.ask(1)
    world.loop.set_exception_handler(lambda *_: None)
    world.run(world.answered(2))


def test_different_walks_wait_in_order_of_arrival(world: World) -> None:
    for client, what in enumerate(["one", "one", "other", "one"]):
        world.ask(client, what)
    world.run(world.answered(4))
    assert world.replies == [(0, 1), (1, 2), (3, 2), (2, 3)]


def test_a_closed_queue_sends_no_reply(world: World) -> None:
    world.ask(1)
    world.ask(2)
    world.walks.close()
    world.run(loop_clock.pause(12 * LONG_S))
    assert world.replies == [(1, 1)]
