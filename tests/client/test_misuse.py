"""Tests that wrong use of a client is named: by an exception, or once in the log where engines must not see one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from eventually import PATIENCE_S, eventually
from pagetier.client import (
    CacheGroup,
    Client,
    FullAttention,
    Hint,
    Keys,
    Namespace,
    RegisteredCache,
    RegisteredGroups,
    SlidingWindow,
)
from pagetier.client.adapters import GroupKeys, adopt, find, reserve_async
from pagetier.client.registered_group import RegisteredGroup
from pagetier.kernels.device import Direction
from pagetier.kernels.host.host_device import HostStream
from running_daemon import RunningDaemon, namespace
from virtual_clock import VirtualClock, in_main_thread

PAGE = 1000


@pytest.fixture
def keys(client: Client) -> Keys:
    """Four pages that are stored."""
    keys = namespace().keys(range(64))
    client.store(keys, [bytes(PAGE)] * 4)
    return keys


@pytest.mark.parametrize(
    ("wrong", "error"), [("1", TypeError), (None, TypeError), (True, TypeError), (-1, ValueError), (np.nan, ValueError)]
)
def test_a_client_takes_a_number_of_seconds(wrong: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^the timeout of a client must be"):
        Client(timeout=wrong)


@pytest.mark.parametrize("wrong", [5, b"/run/x.sock", 1.5])
def test_a_client_takes_the_path_of_a_socket(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"^socket must be a path, not (int|bytes|float)$"):
        Client(wrong)


def test_every_call_takes_a_number_of_seconds(
    daemon: RunningDaemon, client: Client, keys: Keys, standing_clock: VirtualClock
) -> None:
    cache = registered(client)
    cache.store(range(64), [0, 1, 2, 3])
    on_device = RegisteredGroup(client, cache.paged, cache.namespace)
    on_device._on_gpu = True
    groups, gate = registered_groups(client), threading.Event()
    with client.match(keys) as match, cache.match(range(64)) as pages, groups.match(range(64)) as of_groups:
        calls: list[Callable[[Any], object]] = [
            lambda timeout: client.store(keys, [bytes(PAGE)] * 4, timeout=timeout),
            lambda timeout: client.load(match, [bytearray(PAGE)] * 4, timeout=timeout),
            lambda timeout: client.reserve(keys, PAGE, timeout=timeout),
            lambda timeout: reserve_async(client, keys, PAGE, timeout=timeout),
            lambda timeout: client.prefetch(keys, timeout),
            lambda timeout: client.flush(namespace(salt="none"), timeout),
            client.wait_attached,
            lambda timeout: cache.load(pages, [0, 1, 2, 3], timeout=timeout),
            lambda timeout: on_device.load(pages, on_device.slots_of([0], 1), 0, timeout),
            lambda timeout: groups.load(of_groups, [[0]], timeout=timeout),
        ]
        takes_a_number_of_seconds(calls)
        stored = cache.async_store(range(1000, 1064), [0, 1, 2, 3], after=gate)
        loaded = cache.async_load(pages, [4, 5, 6, 7], after=gate)
    assert eventually(lambda: daemon.header().open_entries == 4)
    client.reserve(namespace().keys(range(5000, 5016)), PAGE).abandon()  # its answer comes behind that of the store
    standing_clock.is_stuck = in_main_thread  # no wait for the copies ends before its timeout
    on_stream = partial(loaded.make_stream_wait, HostStream(Direction.LOAD, 1), 0)
    copies: list[Callable[[Any], object]]
    copies = [stored.wait, stored.wait_ended, partial(loaded.wait, 0), loaded.wait_ended, on_stream]
    takes_a_number_of_seconds([*copies, cache.close, groups.close])
    assert stored.wait(0).pending == 4 and not loaded.wait(0, 0)
    standing_clock.is_stuck = lambda: False
    gate.set()
    assert stored.wait(PATIENCE_S).stored == 4 and loaded.wait_ended(PATIENCE_S)


def takes_a_number_of_seconds(calls: Sequence[Callable[[Any], object]]) -> None:
    for call in calls:
        with pytest.raises(TypeError, match=r"^timeout must be a number of seconds, not '1s'$"):
            call("1s")
        with pytest.raises(ValueError, match=r"^timeout must be a number of seconds, not NaN$"):
            call(np.nan)
        call(np.float32(1))
        call(np.int64(1))


def test_a_negative_timeout_is_logged_once_and_waits_for_nothing(
    client: Client, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    more = namespace().keys(range(1000, 1064))
    for timeout in (-1, -np.inf):
        assert client.store(more, [bytes(PAGE)] * 4, timeout=timeout).reason == "the timeout left no time to ask"
    (logged,) = [record.message for record in caplog.records if "below 0" in record.message]
    assert "pass seconds, or None for the client's own" in logged
    assert client.store(more, [bytes(PAGE)] * 4, timeout=None).stored == 4


def registered(client: Client, **options: Any) -> RegisteredCache:
    """Returns a registered cache with pages of 16 tokens."""
    values: dict[str, Any] = {"model": "m", "page_tokens": 16, "layout": "vllm", "num_kv_heads": 2}
    return client.register([torch.zeros(2, 8, 16, 2, 8)], **(values | options))


def registered_groups(client: Client) -> RegisteredGroups:
    """Returns a registered group with pages of 16 tokens."""
    group = CacheGroup(kv_caches=[torch.zeros(2, 8, 16, 2, 8)], layout="vllm", kind=FullAttention(16))
    return client.register(groups=[group], model="m")


def test_integers_of_numpy_count_as_integers(client: Client, keys: Keys) -> None:
    n: Any = np.int64
    float32: Any = np.float32
    cache = registered(client)
    options = {"page_tokens": n(16), "num_kv_heads": n(2), "tp_rank": n(0), "tp_size": n(1), "pp_layers": [n(1)]}
    assert registered(client, **options).namespace == cache.namespace
    assert namespace().page_tokens == n(16)
    one, other = (Namespace(model="m", dtype="bf16", page_tokens=number) for number in (16, n(16)))
    assert one.digest == other.digest
    assert FullAttention(n(16)) == FullAttention(16) and SlidingWindow(16, window=n(32)).window == 32
    assert client.hint(keys, Hint.keep(n(30))) and client.hint(keys, Hint.returns_within(float32(30)))
    cache.store(range(64), [0, 1, 2, 3])
    with cache.match(range(64)) as match:
        assert cache.load(match, [4, 5, 6, 7], skip_tokens=n(16)) == 64
    with client.match(keys) as raw:
        assert client.load(raw, [bytearray(PAGE)] * 3, start_page=n(1)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"page_tokens": "16"}, "page_tokens must be an integer, not '16'"),
        ({"page_tokens": 16.0}, "page_tokens must be an integer, not float"),
        ({"num_kv_heads": "2"}, "num_kv_heads must be an integer, not '2'"),
        ({"tp_rank": "0"}, "tp_rank must be an integer, not '0'"),
        ({"tp_size": True}, "tp_size must be an integer, not bool"),
    ],
)
def test_a_registration_says_which_number_is_wrong(client: Client, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{message}$"):
        registered(client, **options)


def test_tokens_beyond_the_prompt_cannot_be_skipped(client: Client) -> None:
    cache = registered(client)
    cache.store(range(64), [0, 1, 2, 3])
    with cache.match(range(64)) as match:
        assert cache.load(match, [4, 5, 6, 7, 0], skip_tokens=79) == 79, "a prompt of four full pages and 15 tokens"
        for load in (cache.load, cache.async_load):
            with pytest.raises(ValueError, match=r"is 80, but the prompt .* has 4 full pages of 16 tokens, so fewer"):
                load(match, [4, 5, 6, 7], skip_tokens=80)
            with pytest.raises(TypeError, match="skip_tokens must be an integer, not '1'"):
                load(match, [4, 5, 6, 7], skip_tokens="1")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"takes the Match that match\(\) returns, not NoneType"):
                load(None, [4, 5, 6, 7])  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="a block table is a sequence of block IDs, not NoneType"):
                load(match, None)


def test_other_calls_say_what_they_take(client: Client, keys: Keys) -> None:
    groups = registered_groups(client)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: adopt(client.session, None), "takes the MatchHandle"),  # type: ignore[arg-type]
        (lambda: groups.load(None, [[0]]), "takes the GroupMatch"),  # type: ignore[arg-type]
        (lambda: client.reserve(keys, "1"), "size of a page must be an integer, not str"),  # type: ignore[arg-type]
        (lambda: Hint.over("1h"), "must be a number of seconds, not '1h'"),  # type: ignore[arg-type]
        (lambda: Client(name=5), "name of a client must be str, not int"),  # type: ignore[arg-type]
        (lambda: Client(threads="2"), "threads must be an integer, not '2'"),  # type: ignore[arg-type]
        (lambda: client.reserve(keys, 1, (0, 2)), "part must be a Part"),  # type: ignore[arg-type]
        (lambda: reserve_async(client, keys, 1, (0, 2)), "part must be a Part"),  # type: ignore[arg-type]
        (lambda: client.store(keys, [b"x"] * len(keys), (0, 2)), "part must be a Part"),  # type: ignore[arg-type]
    ]
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            call()


def test_a_negative_number_of_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="threads must be 0 or more, not -1"):
        Client(threads=-1)


@pytest.mark.parametrize("wrong", [[1, 2, 3], None, np.arange(3)])
def test_a_match_of_something_else_than_keys_says_how_to_make_them(client: Client, wrong: object) -> None:
    for _ in ("attached", "closed"):
        with pytest.raises(TypeError, match=r"takes Keys, not .*namespace\.keys"):
            client.match(wrong)  # type: ignore[arg-type]
        client.close()


@pytest.mark.parametrize("wrong", [[1, 2, 3], None, "text"])
def test_every_call_with_keys_says_how_to_make_them(client: Client, wrong: Any) -> None:
    calls: list[tuple[str, Callable[[], object]]] = [
        ("store", lambda: client.store(wrong, [bytes(PAGE)])),
        ("reserve", lambda: client.reserve(wrong, PAGE)),
        ("reserve_async", lambda: reserve_async(client, wrong, PAGE)),
        ("prefetch", lambda: client.prefetch(wrong)),
    ]
    for name, call in calls:
        with pytest.raises(TypeError, match=rf"^{name}\(\) takes Keys, not {type(wrong).__name__}: make them with"):
            call()


def test_load_and_flush_say_what_they_take(client: Client, keys: Keys) -> None:
    with pytest.raises(TypeError, match=r"takes the Match that match\(\) returns, not NoneType"):
        client.load(None, [bytearray(PAGE)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a Namespace, not str"):
        client.flush("model")  # type: ignore[arg-type]
    with client.match(keys) as match, pytest.raises(ValueError, match="start_page must be 0 or more, not -1"):
        client.load(match, [bytearray(PAGE)] * 4, start_page=-1)


@pytest.mark.parametrize(
    ("args", "fields", "wrong"),
    [
        (("x", "y", 256), {}, "takes arguments by name only"),
        ((), {}, "needs model, dtype, page_tokens"),
        ((), {"model": "x", "page_tokens": 256}, "needs dtype"),
        ((), {"model": "x", "dtype": "y", "page_tokens": 256, "loras": ""}, "has no loras"),
    ],
)
def test_a_wrong_namespace_says_how_to_write_one(args: Any, fields: Any, wrong: str) -> None:
    with pytest.raises(TypeError) as error:
        Namespace(*args, **fields)
    example = 'Namespace(model="llama", dtype="bfloat16", page_tokens=256)'
    assert str(error.value) == f"Namespace {wrong}: write {example}"
    assert eval(example, {"Namespace": Namespace}).page_tokens == 256


def test_a_match_of_groups_takes_group_keys(client: Client, keys: Keys) -> None:
    with pytest.raises(TypeError, match="a group is GroupKeys, not Keys"):
        client.match_groups([keys])  # type: ignore[list-item]


def test_a_location_says_what_it_takes(client: Client, keys: Keys) -> None:
    with client.match(keys) as match:
        for wrong in (keys, match, None):
            with pytest.raises(TypeError, match=r"locate\(\) takes the GroupMatch that find_groups\(\) returns, not "):
                client.locate(wrong)  # type: ignore[arg-type]


def test_buffers_of_another_size_are_logged_once(client: Client, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    with client.match(keys) as match:
        for _ in range(2):
            assert client.load(match, [bytearray(PAGE // 2)] * 4) == 0
        assert client.load(match, [bytearray(PAGE)] * 4) == 4
    assert [record.message for record in caplog.records if "load()" in record.message] == [
        "load() of pages into buffers of another size than the pages: nothing is loaded; further cases are not logged"
    ]


def test_a_closed_client_is_logged_by_the_matches_of_users(
    client: Client, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [GroupKeys(FullAttention(keys.namespace.page_tokens), keys)]
    client.close()
    assert client.find_groups(groups).tokens == len(find(client.session, keys)) == 0
    assert caplog.records == []
    assert [client.match_groups(groups).tokens for _ in range(2)] == [0, 0]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["match() of a client that is closed"]


def test_a_released_match_and_a_closed_client_are_logged_once(
    client: Client, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    with client.match(keys) as match:
        pass
    assert [client.load(match, [bytearray(PAGE)] * 4) for _ in range(2)] == [0, 0]
    client.close()
    assert [len(client.match(keys)) for _ in range(2)] == [0, 0]
    assert client.store(keys, [bytes(PAGE)] * 4).reason == "the client is closed"
    logged = [record.message.partition(":")[0] for record in caplog.records if "further cases" in record.message]
    assert logged == ["load() of a match that is released", "match() of a client that is closed"]
