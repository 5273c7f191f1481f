"""Exceptions of signal handlers, such as KeyboardInterrupt, at each place of a call where Python may raise them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from eventually import PATIENCE_S, eventually
from interrupted_calls import each_interrupt
from keyed_pages import found, prompt, store
from pagetier.client import Client, Keys
from pagetier.client.adapters import Part, reserve_async
from running_daemon import RunningDaemon

SIZE = 1000
ARENA = "128MiB"  # no page of a test is evicted, or left out
pytestmark = pytest.mark.usefixtures("empty_daemon")  # prompts have the same numbers in all tests


@pytest.fixture
def other(daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a second client, which finds out what the first one is still writing."""
    with daemon.client() as attached:
        yield attached


def reserve_part(client: Client, keys: Keys) -> None:
    with client.reserve(keys, SIZE, Part(1, 2)):
        pass


CALLS: dict[str, Callable[[Client, Keys], Any]] = {
    "store": lambda client, keys: store(client, keys, SIZE),
    "reserve": reserve_part,
    "reserve_async": lambda client, keys: reserve_async(client, keys, SIZE),
    "cancel": lambda client, keys: reserve_async(client, keys, SIZE).cancel(),
    "flush": lambda client, keys: client.flush(keys.namespace),
    "prefetch": lambda client, keys: client.prefetch(keys).wait(PATIENCE_S),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_interrupt_ends_one_call_and_nothing_else(
    daemon: RunningDaemon, client: Client, other: Client, call: Callable[[Client, Keys], Any]
) -> None:
    def nothing_is_being_written(keys: Keys) -> bool:
        return store(other, keys, SIZE).pending == 0

    asked = [prompt(0, 2)]
    for place in each_interrupt(lambda: call(client, asked[-1])):
        assert eventually(partial(nothing_is_being_written, asked[-1])), place
        asked.append(prompt(2 * place + 1, 2))
        more = prompt(2 * place + 2, 2)
        assert store(client, more, SIZE).stored == 2 == found(client, more, SIZE), place
    assert len(asked) > 100
    assert eventually(lambda: not daemon.header().open_entries)
    assert daemon.findings() == []


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("call", [CALLS["flush"], CALLS["reserve"]], ids=["flush", "reserve"])
def test_a_second_interrupt_while_the_first_is_handled_ends_no_later_call(
    daemon: RunningDaemon, client: Client, other: Client, call: Callable[[Client, Keys], Any], again: int
) -> None:
    """What the call had reserved is released by the next call at the latest."""
    asked = [prompt(0, 2)]
    for place in each_interrupt(lambda: call(client, asked[-1]), again):
        more = prompt(2 * place + 2, 2)
        assert store(client, more, SIZE).stored == 2 == found(client, more, SIZE), place
        assert store(other, asked[-1], SIZE).pending == 0, place
        asked.append(prompt(2 * place + 1, 2))
    assert len(asked) > 100
    assert eventually(lambda: not daemon.header().open_entries)


def test_an_interrupt_in_close_leaves_no_slot(daemon: RunningDaemon) -> None:
    clients = [daemon.client()]

    def close() -> None:
        clients[-1].close()

    for place in each_interrupt(close):
        if place < 3:  # it came before close() began
            clients[-1].close()
        assert eventually(lambda: not daemon.slots()), place
        clients.append(daemon.client())
    assert len(clients) > 20
