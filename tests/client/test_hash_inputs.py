"""Keys from an engine's own SHA-256 hashes: the namespace is mixed in, and different hashes give different keys."""

from __future__ import annotations

from array import array
from collections import UserList
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.client.keys import Namespace
from pagetier.shm._core import KEY_BYTES

NS = Namespace(model="meta/llama-8b", dtype="bfloat16", page_tokens=4)
HASHES = [sha256(bytes([number])).digest() for number in range(3)]

unhurried = settings(deadline=None)
hashes_of = st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), max_size=6)


@unhurried
@given(hashes_of)
def test_each_hash_is_mixed_with_the_namespace(hashes: list[bytes]) -> None:
    keys = NS.keys_of_hashes(hashes)
    assert list(keys) == [bytes(a ^ b for a, b in zip(one, NS.digest, strict=True)) for one in hashes]
    assert keys.namespace is NS


def test_a_fixed_vector() -> None:
    """The values were computed once; if they change, every page that is stored under such keys is lost."""
    expected = "e07dc12cc53389c96dddd70bdc090819066161556bf48dde29ba4bb9f6488d4c"
    assert NS.keys_of_hashes(HASHES[:1]).data.hex() == expected


@unhurried
@given(hashes_of)
def test_keys_are_as_different_as_the_hashes(hashes: list[bytes]) -> None:
    assert len(set(NS.keys_of_hashes(hashes))) == len(set(hashes))


@pytest.mark.parametrize("count", [15, 16, 17, 2**16 - 1, 2**16, 2**16 + 1])
def test_any_number_of_hashes(count: int) -> None:
    hashes = np.random.default_rng(count).bytes(KEY_BYTES * count)
    listed = [hashes[at : at + KEY_BYTES] for at in range(0, len(hashes), KEY_BYTES)]
    assert NS.keys_of_hashes(listed) == NS.keys_of_hashes(hashes)
    with pytest.raises(ValueError, match=rf"hash {count} has 31 bytes"):
        NS.keys_of_hashes([*listed, hashes[:31]])


def test_namespaces_share_no_key() -> None:
    others = [msgspec.structs.replace(NS, **{field: "b"}) for field in ("model", "dtype", "rope", "lora", "salt")]
    assert len({key for space in [NS, *others] for key in space.keys_of_hashes(HASHES)}) == 6 * 3
    assert not set(NS.keys_of_hashes(HASHES)) & set(NS.keys_of(HASHES))


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda raw: np.frombuffer(raw, np.uint8)])
def test_one_buffer_gives_the_same_keys(make: Any) -> None:
    assert NS.keys_of_hashes(make(b"".join(HASHES))) == NS.keys_of_hashes(HASHES) == NS.keys_of_hashes(tuple(HASHES))
    assert len(NS.keys_of_hashes(make(b""))) == len(NS.keys_of_hashes([])) == 0


def test_hashes_of_a_type_of_their_own() -> None:
    class Hash(bytes):
        pass

    assert NS.keys_of_hashes([Hash(one) for one in HASHES]) == NS.keys_of_hashes(HASHES)
    assert NS.keys_of_hashes(UserList(HASHES)) == NS.keys_of_hashes(HASHES)


def test_hashes_of_another_length() -> None:
    for wrong, at in (
        ([HASHES[0], HASHES[1][:31]], 1),
        ([HASHES[0] + b"x", HASHES[1][:31]], 0),  # as long as two
        ([HASHES[0], b"", HASHES[1] * 2], 1),  # as long as three
    ):
        with pytest.raises(ValueError, match=rf"hash {at} has \d+ bytes, not 32"):
            NS.keys_of_hashes(wrong)
    with pytest.raises(ValueError, match="33 is not a multiple"):
        NS.keys_of_hashes(bytes(33))


ROWS = [np.zeros(8, np.int32), [np.zeros(32)], array("i")]


@pytest.mark.parametrize(
    "wrong",
    ["x", 3, [1], ["x" * 32], [HASHES[0], None], [HASHES[0], "x" * 32], *ROWS],
    ids=repr,
)
def test_values_that_are_not_hashes_are_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"hash|digests must be"):
        NS.keys_of_hashes(wrong)
