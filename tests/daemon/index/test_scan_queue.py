"""Long walks: who asks meanwhile waits for the next one, which is one for all, and in between the loop is free."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from pagetier.daemon.index.scan_queue import Walks
from virtual_time_loop import OwnTimeLoop

LONG_S = 0.03


class World:
    """A loop with walks that take long, and what they were asked for and answered."""

    def __init__(self) -> None:
        self.loop = OwnTimeLoop()
        self.walks = Walks(self.loop)
        self.began: list[float] = []
        self.told: list[tuple[int, int]] = []

    def ask(self, who: int, what: str = "walk", seconds: float = LONG_S) -> None:
        self.walks.ask(what, lambda: self._walk(seconds), lambda number: self.told.append((who, number)))

    def _walk(self, seconds: float) -> int:
        self.began.append(self.loop.time())
        self.loop.passes(seconds)
        return len(self.began)

    def run(self, act: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(act)

    async def answered(self, number: int) -> None:
        while len(self.told) < number:
            await asyncio.sleep(0.005)


@pytest.fixture
def world() -> Iterator[World]:
    there = World()
    yield there
    there.walks.close()
    there.loop.close()


def test_the_first_is_answered_at_once(world: World) -> None:
    world.ask(1)
    assert world.told == [(1, 1)]


def test_who_asks_behind_a_long_one_shares_the_next(world: World) -> None:
    world.ask(1)
    for who in range(2, 50):
        world.ask(who)
    assert world.told == [(1, 1)]
    world.run(world.answered(49))
    assert world.told[1:] == [(who, 2) for who in range(2, 50)]
    assert world.began[1] - world.began[0] >= 11 * LONG_S


def test_short_ones_are_done_as_they_come(world: World) -> None:
    for who in range(5):
        world.ask(who, seconds=0.0)
    assert world.told == [(who, who + 1) for who in range(5)]


def test_of_those_who_waited_one_is_answered_a_turn(world: World) -> None:
    """However short theirs are: all of a crowd at once would be a long one."""
    turns: list[int] = []

    async def turning() -> None:
        while len(world.told) < 21:
            turns.append(len(world.told))
            await asyncio.sleep(0)

    world.ask(0)
    for who in range(20):
        world.ask(who + 1, str(who), seconds=0.0)
    world.loop.passes(11 * LONG_S)
    world.run(turning())
    assert set(range(1, 21)) <= set(turns)


def test_who_waits_behind_one_that_failed_is_answered(world: World) -> None:
    def failing() -> int:
        raise MemoryError

    world.ask(0)
    world.walks.ask("fails", failing, lambda _: None)
    world.ask(1)
    world.loop.set_exception_handler(lambda *_: None)
    world.run(world.answered(2))


def test_others_wait_in_the_order_in_which_they_came(world: World) -> None:
    for who, what in enumerate(["one", "one", "other", "one"]):
        world.ask(who, what)
    world.run(world.answered(4))
    assert world.told == [(0, 1), (1, 2), (3, 2), (2, 3)]


def test_nobody_is_answered_behind_the_end(world: World) -> None:
    world.ask(1)
    world.ask(2)
    world.walks.close()
    world.run(asyncio.sleep(12 * LONG_S))
    assert world.told == [(1, 1)]
