"""Token IDs in any form give the same keys, and values that are not rows of integers are rejected."""

from array import array
from collections import UserList
from ctypes import c_int32
from typing import Any

import numpy as np
import pytest

from pagetier.client.hash_inputs import token_ids
from pagetier.client.keys import Namespace

NS = Namespace(model="m", dtype="bfloat16", page_tokens=4)
IDS = [0, 1, 5, 127, 3, 2, 99, 4, 17]


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
