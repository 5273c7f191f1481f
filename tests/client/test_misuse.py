"""Tests that wrong use of a client is named: by an exception, or once in the log where engines must not see one."""

from __future__ import annotations

import numpy as np
import pytest

from pagetier.client import Client, Keys
from running_daemon import namespace

PAGE = 1000


@pytest.fixture
def keys(client: Client) -> Keys:
    """Four pages that are stored."""
    keys = namespace().keys(range(64))
    client.store(keys, [bytes(PAGE)] * 4)
    return keys


@pytest.mark.parametrize("wrong", [[1, 2, 3], None, np.arange(3)])
def test_a_match_of_something_else_than_keys_says_how_to_make_them(client: Client, wrong: object) -> None:
    for _ in ("attached", "closed"):
        with pytest.raises(TypeError, match=r"takes Keys, not .*namespace\.keys"):
            client.match(wrong)  # type: ignore[arg-type]
        client.close()


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
