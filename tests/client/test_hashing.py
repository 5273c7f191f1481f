"""Tokens and hashes as engines have them: every form gives the same keys, and other values are rejected."""

from __future__ import annotations

from array import array
from collections import UserList
from ctypes import c_int32
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetier.client.hashing import token_ids
from pagetier.client.keys import Namespace
from pagetier.shm._core import KEY_BYTES

NS = Namespace(model="meta/llama-8b", dtype="bfloat16", page_tokens=4)
IDS = [0, 1, 5, 127, 3, 2, 99, 4, 17]
HASHES = [sha256(bytes([number])).digest() for number in range(3)]

unhurried = settings(deadline=None)
hashes_of = st.lists(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), max_size=6)


# ---- hashes: the namespace is mixed in, and different hashes give different keys


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


# ---- tokens


class Constant(UserList[int]):
    """A read-only list as an engine may have it."""


@pytest.mark.parametrize(
    "tokens",
    [
        tuple(IDS),
        Constant(IDS),
        array("I", IDS),
        array("B", IDS),
        array("q", IDS),
        memoryview(array("i", IDS)),
        memoryview(array("h", [9, *IDS]))[1:],
        memoryview(array("i", [t for i in IDS for t in (i, 9)]))[::2],
        (c_int32 * len(IDS))(*IDS),
        [np.int64(i) for i in IDS],
        *(np.array(IDS, kind) for kind in ("i1", "u1", "<i2", ">i2", "<i4", ">i4", "<u4", ">u4", "i8", "u8", ">i8")),
        np.array([t for i in IDS for t in (i, -1)], np.int32)[::2],
    ],
    ids=lambda tokens: f"{type(tokens).__name__}-{getattr(tokens, 'dtype', '')}",
)
def test_every_form_gives_the_same_keys(tokens: Any) -> None:
    assert NS.keys(tokens) == NS.keys(IDS)


def test_range() -> None:
    assert NS.keys(range(8, 0, -1)) == NS.keys([8, 7, 6, 5, 4, 3, 2, 1])


@pytest.mark.parametrize("empty", [[], (), range(0), np.zeros(0, np.int32), array("i"), np.zeros(0, np.int64)])
def test_no_tokens_no_keys(empty: Any) -> None:
    assert len(NS.keys(empty)) == 0
    assert len(NS.keys(empty, [])) == 0


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
def test_arrays_are_not_copied(kind: Any) -> None:
    tokens = np.arange(8, dtype=kind)
    assert np.shares_memory(token_ids(tokens), tokens)
    tokens.flags.writeable = False
    assert np.shares_memory(token_ids(tokens), tokens)
    assert len(NS.keys(tokens)) == 2


@pytest.mark.parametrize("kind", ["int32", "int64", "uint8", "int16", "uint32"])
def test_torch_tensors(kind: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(IDS, dtype=getattr(torch, kind))
    assert NS.keys(tensor) == NS.keys(IDS)
    assert NS.keys(tensor.repeat_interleave(2)[::2]) == NS.keys(IDS)


def test_torch_tensors_that_are_not_tokens_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    for wrong in (
        torch.zeros(4),
        torch.zeros(4, requires_grad=True),
        torch.zeros(4, dtype=torch.bfloat16),
        torch.zeros(4, dtype=torch.bool),
        torch.zeros((2, 4), dtype=torch.int32),
        torch.zeros(4, dtype=torch.int32, device="meta"),
    ):
        with pytest.raises(TypeError):
            NS.keys(wrong)
    with pytest.raises(ValueError, match="token 1 is -1"):
        NS.keys(torch.tensor([0, -1]))


@pytest.mark.parametrize(
    "tokens",
    [
        "text",
        b"1234",
        bytearray(4),
        memoryview(b"1234"),
        None,
        7,
        {1, 2},
        {1: 2},
        iter([1, 2]),
        [1, 2.0],
        [1, "2"],
        [1, None],
        [0, True],
        (False, 2),
        [1, np.bool_(True)],
        [1, np.float32(2)],
        [[1, 2], [3, 4]],
        [[1, 2], [3]],
        [1, [2]],
        array("d", [1.0]),
        array("f"),
        memoryview(array("d", [1.0])),
        np.zeros(4),
        np.zeros(4, bool),
        np.zeros((2, 2), np.int32),
        np.array(3, np.int32),
        np.int64(3),
        np.array([1, 2], object),
        np.array(["a"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "i4,i4"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_not_rows_of_integers_are_rejected(tokens: Any) -> None:
    with pytest.raises(TypeError):
        NS.keys(tokens)


@pytest.mark.parametrize(
    "tokens",
    [
        [0, 1, -7, 2**32],
        (0, 1, -7, -8),
        np.array([0, 1, -7, -8], np.int8),
        np.array([0, 1, -7, -8], np.int32),
        np.array([0, 1, -7, -8], ">i4"),
        np.array([0, 1, -7, 2**32], np.int64),
        array("i", [0, 1, -7, 3]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_negative_tokens(tokens: Any) -> None:
    with pytest.raises(ValueError, match="token 2 is -7:"):
        NS.keys(tokens)


@pytest.mark.parametrize(
    "tokens",
    [[3, 2**32, -1], [3, 2**70], np.array([3, 2**32, -1]), np.array([3, 2**63], np.uint64)],
    ids=lambda value: type(value).__name__,
)
def test_too_large_tokens(tokens: Any) -> None:
    with pytest.raises(ValueError, match=f"token 1 is {int(tokens[1])}:"):
        NS.keys(tokens)


def test_tokens_after_the_last_full_page_are_checked_too() -> None:
    with pytest.raises(ValueError, match="token 5 is -1"):
        NS.keys(np.array([1, 2, 3, 4, 5, -1], np.int32))
