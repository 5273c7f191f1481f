"""Pages that the daemon leaves out: they are reported as such, and are neither rejected nor a failure."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from eventually import eventually
from keyed_pages import in_memory, prompt
from leaving_out import NEW_PAGES, PAGE, small_daemon, until_left_out, use, use_all_that_return
from pagetier.client import Client, Keys, Outcome
from pagetier.client.adapters import Part
from pagetier.daemon.status.eviction_report import EvictionState
from running_daemon import RunningDaemon


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with small_daemon() as running:
        yield running


def test_a_page_that_is_left_out_is_not_rejected(
    daemon: RunningDaemon, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keys, result, total = until_left_out(client)
    assert set(result.outcomes) <= {Outcome.STORED, Outcome.LEFT_OUT}
    assert result.refused == 0 and result.reason == "" and "left out" in repr(result)
    assert result.stored + result.left_out == len(keys)
    assert result.outcomes == sorted(result.outcomes), "the last pages are left out"
    assert in_memory(client, keys) <= result.stored
    assert caplog.messages == [], "the client has nothing to say"
    assert eventually(lambda: daemon.snapshot().eviction.left_out == total)
    snapshot = daemon.snapshot()
    assert snapshot.stores.refused == 0 and daemon.lines("level=warning") == []
    assert snapshot.eviction.policy == "cadence", "by default"
    shown = daemon.pagetier("stats").stdout.replace("\n  ", " ")
    assert f"{total:,} pages left out" in shown and "rejected" not in shown
    assert json.loads(daemon.pagetier("stats", "--json").stdout)["eviction"]["left_out"] == total
    assert "left out" not in daemon.pagetier("doctor").output
    assert daemon.findings() == []


def test_the_page_of_doctor_is_not_left_out() -> None:
    """Prompts of one page, as its own, never return, beside others that return and would fill more than the memory."""
    with small_daemon(frame="1MiB") as daemon, daemon.client() as client:
        left_out = 0
        for turn in range(60):
            for number in range(8):
                use(client, prompt(number, 10))
            left_out += sum(use(client, prompt(1000 + 4 * turn + other, 1)).left_out for other in range(4))
        assert left_out > 60, "most of them are left out"
        for _ in range(5):
            done = daemon.pagetier("doctor", "--write")
            assert "write: drop" in done.output, done.output


def test_parts_of_ranks_are_not_left_out(daemon: RunningDaemon, client: Client) -> None:
    """If one rank had stored its part and the other one were left out, the page would never be readable."""
    until_left_out(client)
    for number in range(20):
        use_all_that_return(client)
        keys = prompt(2000 + number, NEW_PAGES)
        halves = [client.reserve(keys, PAGE, Part(index, 2)).publish() for index in range(2)]
        assert [half.outcomes for half in halves] == [[Outcome.STORED] * NEW_PAGES] * 2
        assert in_memory(client, keys) == NEW_PAGES


def test_a_client_of_an_earlier_build_is_served_in_the_order_of_lru(daemon: RunningDaemon, client: Client) -> None:
    """It does not say which page is before which, and does not know that a page can be left out."""
    _, _, total = until_left_out(client)
    assert eventually(lambda: daemon.snapshot().eviction.left_out == total)
    assert daemon.snapshot().eviction.state is not EvictionState.LEARNING
    stored = 0
    for number in range(60):
        keys = prompt(2000 + number, 8)
        result = use(client, Keys(keys.namespace, keys.data, None))  # type: ignore[arg-type]  # such a client's message
        assert result.outcomes == [Outcome.STORED] * 8
        stored += result.stored
    assert stored > 256, "more than a round of stores"
    assert eventually(lambda: daemon.snapshot().eviction.state is EvictionState.LEARNING)
    assert daemon.snapshot().eviction.left_out == total
