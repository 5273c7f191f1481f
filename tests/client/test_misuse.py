"""Tests that wrong use of a client is named: by an exception, or once in the log where engines must not see one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pagetier.client import Client, Keys, Namespace
from running_daemon import namespace

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
    with pytest.raises(error, match=r"^Client\(\) takes a"):
        Client(timeout=wrong)


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
        ("reserve_async", lambda: client.reserve_async(wrong, PAGE)),
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


def test_buffers_of_another_size_are_logged_once(client: Client, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    with client.match(keys) as match:
        for _ in range(2):
            assert client.load(match, [bytearray(PAGE // 2)] * 4) == 0
        assert client.load(match, [bytearray(PAGE)] * 4) == 4
    assert [record.message for record in caplog.records if "load()" in record.message] == [
        "load() of pages into buffers of another size than the pages: nothing is loaded; further cases are not logged"
    ]


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
