"""What a vLLM request says of its session reaches the client once, after its pages are stored; wrong values do not."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from eventually import eventually
from fake_vllm_client import PAGE, FakeClient, nothing_scheduled, request
from pagetier.client import Hint, Keys
from pagetier.client.engines.prefetch_thread import PrefetchThread
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.engines.vllm.scheduler import SchedulerHalf
from pagetier.client.engines.vllm.tier_reads import ReadLimits
from pagetier.client.groups import FullAttention
from pagetier.client.keys import Namespace

SPACE = Namespace(model="test", dtype="bfloat16", page_tokens=PAGE)


class HintedClient(FakeClient):
    """A fake client that also records hints."""

    def __init__(self) -> None:
        super().__init__()
        self.hints: list[tuple[int, Hint]] = []

    def hint(self, keys: Keys, hint: Hint) -> bool:
        self.hints.append((len(keys), hint))
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def client() -> HintedClient:
    return HintedClient()


@pytest.fixture
def half(client: HintedClient) -> Iterator[SchedulerHalf]:
    group = PagedGroup(FullAttention(PAGE), SPACE, 1, strong=False)
    scheduler = SchedulerHalf(client, [group], ReadLimits(0.0))  # type: ignore[arg-type]
    yield scheduler
    scheduler.close()


def ended(half: SchedulerHalf, said: object = None, status: str = "FINISHED_STOPPED", **more: object) -> None:
    """Lets a request of 10 pages begin and end."""
    params = None if said is None else {"other": 1, "pagetier": said}
    given = request()
    about = {"kv_transfer_params": params, "status": SimpleNamespace(name=status), "stop_reason": None}
    vars(given).update({**about, **more})
    half.matched(given, 0)
    half.build(nothing_scheduled())
    half.finished(given, [[]])


def hints(client: HintedClient, *wanted: Hint) -> bool:
    return eventually(lambda: [hint for _, hint in client.hints] == list(wanted))


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"over": True}, [Hint.over()]),
        ({"over": True, "ttl": 5}, [Hint.over(5.0)]),
        ({"returns_within": 60}, [Hint.returns_within(60.0)]),
        ({"returns_within": 900, "ttl": 1000.5}, [Hint.returns_within(900.0, 1000.5)]),
        ({"keep": 300}, [Hint.keep(300.0)]),
        ({"returns_within": 20, "keep": 5}, [Hint.returns_within(20.0), Hint.keep(5.0)]),
        ({"prefetch": False}, []),
        ({}, []),
    ],
)
def test_the_hints_of_a_request_are_sent_when_it_has_ended(
    half: SchedulerHalf, client: HintedClient, said: dict[str, object], wanted: list[Hint]
) -> None:
    ended(half, said)
    assert hints(client, *wanted)
    assert {pages for pages, _ in client.hints} <= {10}
    assert not half.counters.taken().get("wrong_hints")


def test_hints_of_a_step_wake_their_thread_once(half: SchedulerHalf, client: HintedClient) -> None:
    """A step ends many requests, and each wake-up takes time from the engine."""
    keys, thread, may_send = SPACE.keys(range(PAGE)), PrefetchThread(client), threading.Event()  # type: ignore[arg-type]
    said = [Hint.over(float(1 + number)) for number in range(50)]
    thread.run(lambda: may_send.wait(60))
    with mock.patch.object(thread._thread, "submit", side_effect=thread._thread.submit) as submit:
        for hint in said:
            thread.hint(keys, hint)
        assert submit.call_count == 1
        may_send.set()
        assert hints(client, *said)
        thread.hint(keys, Hint.keep(1.0))
        assert submit.call_count == 2
    assert hints(client, *said, Hint.keep(1.0))
    thread.close()


@pytest.mark.parametrize(
    "said",
    [
        {"over": 3}, {"over": True, "returns_within": 5}, {"returns_within": -1}, {"returns_within": "soon"},
        {"returns_within": 1e400}, {"keep": 0}, {"keep": float("inf")}, {"ttl": -5, "over": True}, {"ovr": True},
        "over", 7, [1],
    ],
)  # fmt: skip
def test_wrong_hints_are_counted_and_logged_once_and_the_request_is_served(
    half: SchedulerHalf, client: HintedClient, said: object, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("vllm.pagetier").propagate = True
    client.here = client.available_tokens = 5 * PAGE
    given = request(name="waits")
    given.kv_transfer_params = {"pagetier": said}
    assert half.matched(given, 0) == 5 * PAGE
    for _ in range(2):
        ended(half, said)
    assert half.counters.taken()["wrong_hints"] == 3
    assert not client.hints
    assert len([record for record in caplog.records if "ignoring the hints" in record.message]) == 1


def test_hints_of_an_engine_that_stores_nothing_do_not_wait(half: SchedulerHalf, client: HintedClient) -> None:
    half.stores = False
    given = request()
    vars(given).update(kv_transfer_params={"pagetier": {"over": True}}, num_prompt_tokens=PAGE)
    half.allocated(given, [[]], 0)
    given.num_computed_tokens = given.num_tokens  # its last pages had no keys before
    retained = half.finished(given, [[*range(1, 11)]])
    assert hints(client, Hint.over()) and not retained


def test_hints_wait_for_the_last_store(
    half: SchedulerHalf, client: HintedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagetier.client.engines.vllm.scheduler.late_store_commands", lambda *_: [SimpleNamespace()])
    ended(half, {"over": True})
    assert not client.hints
    half.loaded((), ["other"])
    assert not client.hints
    half.loaded((), ["one"])
    assert hints(client, Hint.over())


@pytest.mark.parametrize(
    ("status", "stop_reason", "wanted"),
    [
        ("FINISHED_STOPPED", None, []),
        ("FINISHED_STOPPED", 128008, [Hint.returns_within(60.0)]),
        ("FINISHED_STOPPED", "</tool>", [Hint.returns_within(60.0)]),
        ("FINISHED_LENGTH_CAPPED", None, [Hint.over()]),
        ("FINISHED_ABORTED", None, []),
    ],
)
def test_the_reason_of_the_end_is_a_hint(
    half: SchedulerHalf, client: HintedClient, status: str, stop_reason: object, wanted: list[Hint]
) -> None:
    ended(half, None, status, stop_reason=stop_reason)
    assert hints(client, *wanted)


def test_what_a_request_says_is_above_the_reason_of_its_end(half: SchedulerHalf, client: HintedClient) -> None:
    ended(half, {"returns_within": 20}, "FINISHED_LENGTH_CAPPED")
    assert hints(client, Hint.returns_within(20.0))


@pytest.mark.parametrize(
    ("actions", "wanted"),
    [
        ([("pagetier", {"returns_within": 60})], [Hint.returns_within(60.0)]),
        ([("Retain", {"ttl": 30})], [Hint.keep(30.0)]),
        ([("PIN", {})], [Hint.keep()]),
        ([("demote", {})], [Hint.over()]),
        ([("share", {"target": 1}), ("prefetch", {})], []),
    ],
)
@pytest.mark.parametrize("form", ["objects", "json"])
def test_the_envelope_of_later_engines_is_read(
    half: SchedulerHalf, client: HintedClient, actions: list[tuple[str, Any]], wanted: list[Hint], form: str
) -> None:
    plain = [{"action_id": "1", "action_type": kind, "action_version": 1, "payload": load} for kind, load in actions]
    envelope: object = {"protocol_version": 1, "message_id": "m", "actions": plain}
    if form == "objects":
        envelope = SimpleNamespace(actions=[SimpleNamespace(**action) for action in plain])
    ended(half, kv_hints=envelope)
    assert hints(client, *wanted)


def test_a_request_may_leave_the_disk_alone(half: SchedulerHalf, client: HintedClient) -> None:
    client.available_tokens = 5 * PAGE
    for said, asked in (({"prefetch": False}, 0), ({}, 1)):
        given = request(name=str(asked))
        given.kv_transfer_params = {"pagetier": said}
        assert half.matched(given, 0) == 0
        assert eventually(lambda asked=asked: client.prefetches == asked)  # type: ignore[misc]
