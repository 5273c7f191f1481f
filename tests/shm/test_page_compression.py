"""The compression of pages: real keys and values, both forms of the code, and bytes that are no page."""

from __future__ import annotations

import ctypes
import random
from ctypes import c_int, c_uint8, c_uint32, c_uint64
from pathlib import Path

import numpy as np
import pytest

from compiled_library import compile_library
from kv_pages import kv_page
from pagetier.shm import _core
from pagetier.shm._core import compress, compresses_fast, expand

HERE = Path(__file__).parent
SCALAR, VECTOR = 0, 1
BLOCK = 64 << 10
RATIOS = {"bf16": 1.39, "f16": 1.12}
ODD_SIZES = [1, 511, 512, 513, 1024, BLOCK - 512, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 512, 3 * BLOCK - 4096]


def compressed(page: bytes, room: int | None = None) -> bytes:
    out = bytearray(len(page) + 4 * (len(page) // BLOCK + 1) if room is None else room)
    return bytes(out[: compress([page], out)])


def expanded(data: bytes, size: int) -> bytes | None:
    page = bytearray(size)
    return bytes(page) if expand(data, [page]) else None


def modes_of(data: bytes) -> list[int]:
    """Returns the mode of each block."""
    modes, at = list[int](), 0
    while at < len(data):
        modes.append(data[at])
        at += 4 + int.from_bytes(data[at + 1 : at + 4], "little")
    return modes


def random_page(seed: int, size: int) -> bytes:
    """Returns values whose exponents have a width that the seed decides, and some exponents far from the others."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size // 2 + 1) * np.exp2(rng.integers(-(1 + seed % 7), 1 + seed % 5, size // 2 + 1))
    values[rng.random(size // 2 + 1) < (seed % 4) / 50] *= 2.0 ** (20 - 40 * (seed % 2))
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()[:size]


@pytest.mark.parametrize("dtype", RATIOS)
def test_real_keys_and_values_become_shorter(dtype: str) -> None:
    page = kv_page(dtype, 1 << 20)  # type: ignore[arg-type]
    data = compressed(page)
    assert len(page) / len(data) >= RATIOS[dtype]
    assert set(modes_of(data)) == {3 if dtype == "bf16" else 6}
    assert expanded(data, len(page)) == page


def test_wide_exponents_take_four_bits() -> None:
    rng = np.random.default_rng(1)
    exponents = rng.integers(113, 127, BLOCK // 2).astype(np.uint16)
    page = (exponents << 7 | rng.integers(0, 128, BLOCK // 2).astype(np.uint16)).tobytes()
    data = compressed(page)
    assert modes_of(data) == [4] and len(page) / len(data) >= 1.32
    assert expanded(data, len(page)) == page


@pytest.mark.parametrize("size", ODD_SIZES)
def test_pages_of_any_size_come_back(size: int) -> None:
    page = kv_page("bf16", size)
    assert expanded(compressed(page), size) == page


def test_what_cannot_become_shorter_stays_as_it_is() -> None:
    page = random.Random(1).randbytes(3 * BLOCK)
    data = compressed(page)
    assert modes_of(data) == [0, 0, 0] and len(data) == len(page) + 12
    assert expanded(data, len(page)) == page
    assert compressed(page, len(page)) == b""


def test_the_blocks_of_a_page_may_differ() -> None:
    noise = random.Random(2).randbytes(BLOCK)
    page = kv_page("bf16", BLOCK) + noise + kv_page("f16", BLOCK) + bytes(BLOCK)
    assert modes_of(compressed(page)) == [3, 0, 6, 3]
    assert expanded(compressed(page), len(page)) == page


@pytest.mark.parametrize("frame", [4096, 100_000, 1 << 20])
def test_frames_are_parts_of_one_page(frame: int) -> None:
    page = kv_page("bf16", 5 * BLOCK + 4096)
    out, back = bytearray(len(page)), bytearray(len(page))
    parts = [memoryview(back)[at : at + frame] for at in range(0, len(page), frame)]
    length = compress([page[at : at + frame] for at in range(0, len(page), frame)], out)
    assert bytes(out[:length]) == compressed(page)
    assert expand(out[:length], parts) and back == page


@pytest.mark.parametrize("room", [0, 3, 100, BLOCK // 2, BLOCK])
def test_too_little_room_is_said_and_not_left(room: int) -> None:
    page, out = kv_page("bf16", 2 * BLOCK), bytearray(2 * BLOCK)
    assert compress([page], memoryview(out)[:room]) == 0
    assert out[room:] == bytes(2 * BLOCK - room)


@pytest.mark.parametrize("more", [0, 1, 4095])
def test_zeros_may_follow_a_page_and_nothing_else(more: int) -> None:
    page = kv_page("bf16", BLOCK)
    data = compressed(page)
    assert expanded(data + bytes(more), BLOCK) == page
    assert expanded(data + bytes(more) + b"\1", BLOCK) is None


def test_damaged_pages_are_other_bytes_or_none() -> None:
    page, rng = kv_page("bf16", 2 * BLOCK), random.Random(3)
    data = compressed(page)
    outcomes = set[bool]()
    for _ in range(300):
        copy = bytearray(data[: rng.choice((len(data), rng.randrange(len(data))))])
        for _ in range(rng.randrange(1, 4)):
            copy[rng.choice((rng.randrange(len(copy)), 0, 3)) % len(copy)] ^= rng.randrange(1, 256)
        outcomes.add(expanded(bytes(copy), len(page)) is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize("size", [BLOCK - 512, BLOCK + 512, 4 * BLOCK])
def test_a_page_of_another_size_is_rejected(size: int) -> None:
    assert expanded(compressed(kv_page("bf16", 2 * BLOCK)), size) is None


def test_misuse_is_an_error() -> None:
    with pytest.raises(ValueError, match="a part of a page has no bytes"):
        compress([b"ab", b""], bytearray(100))
    with pytest.raises((BufferError, TypeError)):
        expand(b"\0\1\0\0x", [b"x"])
    with pytest.raises(TypeError):
        compress([1], bytearray(100))  # type: ignore[list-item]
    assert compress([], bytearray(1)) == 0 and expand(b"", [])


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("forms") / "compression_forms.so"
    compile_library([str(HERE / "compression_forms.c")], target, f"-I{Path(_core.__file__).parent / 'core'}")
    forms = ctypes.CDLL(str(target))
    forms.compress.restype = forms.encode.restype = c_uint64
    return forms


needs_vector = pytest.mark.skipif(not compresses_fast(), reason="this processor has no AVX2")


@needs_vector
@pytest.mark.parametrize("page", [*map(random_page, range(40), ODD_SIZES * 4), kv_page("f16", 2 * BLOCK), bytes(BLOCK)])
def test_both_forms_write_the_same_and_read_each_other(forms: ctypes.CDLL, page: bytes) -> None:
    room = len(page) + 100
    outs, back = [(c_uint8 * room)() for _ in range(2)], (c_uint8 * len(page))()
    lengths = [forms.compress(form, page, c_uint64(len(page)), outs[form], c_uint64(room)) for form in (SCALAR, VECTOR)]
    assert lengths[SCALAR] == lengths[VECTOR] > 0
    assert bytes(outs[SCALAR])[: lengths[0]] == bytes(outs[VECTOR])[: lengths[0]]
    for form in (SCALAR, VECTOR):
        ctypes.memset(back, 0, len(page))
        assert forms.expand(form, outs[1 - form], c_uint64(lengths[form]), back, c_uint64(len(page)))
        assert bytes(back) == page


@needs_vector
@pytest.mark.parametrize("width", [3, 4, 6])
@pytest.mark.parametrize("base", [0, 100, 124, 255])
def test_both_forms_are_the_same_for_each_of_all_values(forms: ctypes.CDLL, width: int, base: int) -> None:
    """Each of the 65,536 values of 16 bits, in two orders, in the columns that follow from them."""
    every = np.arange(1 << 16, dtype=np.uint16)
    values = np.concatenate((every, np.random.default_rng(width).permutation(every))).tobytes()
    groups, room = len(values) // 512, 2 * len(values)
    outs, back = [(c_uint8 * room)() for _ in range(2)], (c_uint8 * len(values))()
    lengths = [
        forms.encode(form, c_int(width), values, c_uint32(groups), c_uint8(base), outs[form], c_uint64(room))
        for form in (SCALAR, VECTOR)
    ]
    assert lengths[SCALAR] == lengths[VECTOR] > 0
    assert bytes(outs[SCALAR])[: lengths[0]] == bytes(outs[VECTOR])[: lengths[0]]
    for form in (SCALAR, VECTOR):
        ctypes.memset(back, 0, len(values))
        assert forms.decode(form, c_int(width), outs[SCALAR], c_uint64(lengths[0]), c_uint32(groups), back)
        assert bytes(back) == values
