"""Host memory of any kind is converted to plain addresses, and other objects are rejected."""

import ctypes
import gc
import mmap
from array import array
from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.kernels.host.buffers import Access, HostPages, page_count, pages_of, span_of


def contents(pages: HostPages) -> list[bytes]:
    """Returns the bytes at the addresses, read without Python's buffers."""
    return [ctypes.string_at(int(at), int(size)) for at, size in zip(pages.addresses, pages.sizes, strict=True)]


def fill(pages: HostPages) -> None:
    for number, (at, size) in enumerate(zip(pages.addresses, pages.sizes, strict=True)):
        ctypes.memset(int(at), number + 1, int(size))


FORMS = {
    "bytearray": bytearray,
    "memoryview": lambda raw: memoryview(bytearray(raw)),
    "part of a memoryview": lambda raw: memoryview(bytearray(b"head" + raw + b"tail"))[4 : 4 + len(raw)],
    "array": lambda raw: array("H", raw),
    "ctypes": lambda raw: (ctypes.c_uint8 * len(raw)).from_buffer_copy(raw),
    "numpy": lambda raw: np.frombuffer(bytearray(raw), np.uint8),
    "numpy 3d": lambda raw: np.frombuffer(bytearray(raw), "f4").reshape(2, 3, -1),
    "numpy complex": lambda raw: np.frombuffer(bytearray(raw), "c8"),
    "numpy dates": lambda raw: np.frombuffer(bytearray(raw), "M8[s]"),
    "numpy fields": lambda raw: np.frombuffer(bytearray(raw), [("Of", "i4"), ("to", "f4")]),
    "memoryview of fields": lambda raw: np.frombuffer(bytearray(raw), [("Of", "i4"), ("to", "f4")]).data,
}
READ_ONLY_FORMS = {
    "bytes": bytes,
    "memoryview of bytes": memoryview,
    "numpy of bytes": lambda raw: np.frombuffer(raw, np.int16),
    "read-only view": lambda raw: memoryview(bytearray(raw)).toreadonly(),
}
RAW = bytes(range(48))

any_form = pytest.mark.parametrize("make", (FORMS | READ_ONLY_FORMS).values(), ids=(FORMS | READ_ONLY_FORMS).keys())
writable_form = pytest.mark.parametrize("make", FORMS.values(), ids=FORMS.keys())
read_only_form = pytest.mark.parametrize("make", READ_ONLY_FORMS.values(), ids=READ_ONLY_FORMS.keys())


@any_form
def test_one_buffer_is_shared_evenly(make: Any) -> None:
    pages = pages_of(make(RAW), 3, Access.READ)
    assert contents(pages) == [RAW[:16], RAW[16:32], RAW[32:]]
    assert pages.sizes.tolist() == [16, 16, 16]


@any_form
def test_each_page_may_have_its_own_buffer(make: Any) -> None:
    pages = pages_of([make(RAW), make(RAW[::-1])], 2, Access.READ)
    assert contents(pages) == [RAW, RAW[::-1]]


@writable_form
def test_writing_reaches_the_buffer(make: Any) -> None:
    buffer = make(RAW)
    fill(pages_of(buffer, 2, Access.WRITE))
    assert np.asarray(buffer).view(np.uint8).tobytes() == bytes([1] * 24 + [2] * 24)


@read_only_form
def test_read_only_memory_is_not_written(make: Any) -> None:
    with pytest.raises(TypeError, match="read-only"):
        pages_of(make(RAW), 1, Access.WRITE)
    with pytest.raises(TypeError, match=r"page 1: .* read-only"):
        pages_of([bytearray(4), make(RAW)], 2, Access.WRITE)


def test_pages_may_have_several_sizes_and_kinds() -> None:
    pages = pages_of((b"abc", bytearray(b"d"), np.full(2, 7, np.int8)), 3, Access.READ)
    assert contents(pages) == [b"abc", b"d", b"\7\7"]
    assert len(pages) == 3
    assert pages.nbytes == 6


def test_buffers_may_be_in_any_sequence() -> None:
    assert contents(pages_of(deque([b"ab", b"c"]), 2, Access.READ)) == [b"ab", b"c"]


def test_mapped_memory_is_a_buffer() -> None:
    with mmap.mmap(-1, 8192) as mapped:
        pages = pages_of(mapped, 2, Access.WRITE)
        fill(pages)
        assert mapped[:] == b"\1" * 4096 + b"\2" * 4096
        del pages


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=6))
def test_any_number_of_buffers_is_accepted(pieces: list[bytes]) -> None:
    assert contents(pages_of(pieces, len(pieces), Access.READ)) == pieces


@given(st.integers(1, 20), st.integers(1, 20))
def test_any_even_division_is_accepted(count: int, size: int) -> None:
    raw = bytes(range(count)) * size
    pages = pages_of(raw, count, Access.READ)
    assert contents(pages) == [raw[at : at + size] for at in range(0, len(raw), size)]


def test_addresses_are_plain_u64() -> None:
    pages = pages_of(np.zeros((2, 8)), 2, Access.READ)
    for numbers in (pages.addresses.data, pages.sizes.data):
        assert (numbers.itemsize, numbers.c_contiguous, numbers.shape) == (8, True, (2,))
        assert numbers.cast("B").cast("Q").tolist() == numbers.tolist()


def test_no_pages_have_no_addresses() -> None:
    empties: list[Any] = [[], (), b"", bytearray(), np.zeros((0, 4))]
    for nothing in empties:
        pages = pages_of(nothing, 0, Access.READ)
        assert len(pages) == pages.nbytes == 0
        assert pages.addresses.dtype == pages.sizes.dtype == np.uint64


def test_memory_lives_as_long_as_its_pages() -> None:
    pages = pages_of([bytes([n]) * 100_000 for n in range(20)], 20, Access.READ)
    gc.collect()
    assert contents(pages) == [bytes([n]) * 100_000 for n in range(20)]


def test_a_buffer_in_use_is_not_resized() -> None:
    buffer = bytearray(16)
    pages = pages_of(buffer, 1, Access.READ)
    with pytest.raises(BufferError):
        buffer.append(1)
    del pages
    buffer.append(1)


def test_repr_is_a_status_line() -> None:
    assert repr(pages_of(bytes(3 << 20), 2, Access.READ)) == "<HostPages 2 pages, 3.0 MiB>"
    assert repr(pages_of(bytes(1 << 20), 1, Access.READ)) == "<HostPages 1 page, 1.0 MiB>"


def test_one_buffer_has_a_span() -> None:
    buffer = np.arange(5, dtype=np.int16)
    span = span_of(buffer, Access.WRITE)
    assert (span.address, span.nbytes) == (buffer.ctypes.data, 10)
    assert span_of(b"", Access.READ).nbytes == 0


def test_read_only_memory_is_not_copied() -> None:
    assert span_of(RAW, Access.READ).address == np.frombuffer(RAW, np.uint8).ctypes.data


def test_page_count() -> None:
    assert page_count(bytes(48), 16) == 3
    assert page_count(np.zeros(6), 16) == 3
    assert page_count([bytes(1), bytes(2)], 16) == 2
    assert page_count(b"", 16) == page_count([], 16) == 0
    with pytest.raises(ValueError, match="48 bytes does not hold whole pages of 32 bytes"):
        page_count(bytes(48), 32)


# ---- refused


@pytest.mark.parametrize(("nbytes", "count"), [(10, 3), (3, 10), (10, 0), (0, 2), (10, -1), (10, -2)])
def test_a_size_that_is_not_divisible_by_the_pages_is_rejected(nbytes: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{nbytes} bytes does not divide into {count} pages"):
        pages_of(bytes(nbytes), count, Access.READ)


@pytest.mark.parametrize(("buffers", "count"), [([b"a"], 2), ([], 1), ((b"a", b"b"), 1)])
def test_another_number_of_buffers_is_rejected(buffers: Any, count: int) -> None:
    with pytest.raises(ValueError, match=f"{len(buffers)} buffers for {count} pages"):
        pages_of(buffers, count, Access.READ)


@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros((4, 4))[:, :2],
        np.zeros(8)[::2],
        np.zeros((4, 4)).T,
        memoryview(bytearray(8))[::2],
        np.asfortranarray(np.zeros((2, 2))).data,
        np.broadcast_to(np.zeros(1), 4),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_memory_that_is_not_contiguous_is_rejected(buffer: Any, access: Access) -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        pages_of(buffer, 2, access)
    with pytest.raises(ValueError, match=r"page 1: .* not contiguous"):
        pages_of([bytearray(1), buffer], 2, access)


@pytest.mark.parametrize(
    "buffer",
    [
        np.array([1, None], object),
        np.zeros(2, [("a", "i4"), ("b", object)]),
        np.array([1, None], object).data,
        np.zeros(2, [("a", "i4"), ("b", object)]).data,
        (ctypes.py_object * 2)(),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_arrays_of_objects_are_rejected(buffer: Any) -> None:
    with pytest.raises(TypeError, match="references to Python objects"):
        pages_of(buffer, 2, Access.WRITE)


_NO_MEMORY: list[Any] = [None, 7, "text", {b"a"}, {0: b"a"}, iter([b"a"]), object()]


@pytest.mark.parametrize("buffer", _NO_MEMORY, ids=lambda buffer: type(buffer).__name__)
def test_objects_without_memory_are_rejected(buffer: Any) -> None:
    with pytest.raises(TypeError):
        pages_of(buffer, 1, Access.READ)
    with pytest.raises(TypeError, match=r"page 0: .* not a buffer"):
        pages_of([buffer], 1, Access.READ)


@pytest.mark.parametrize("empty", [b"", bytearray(), np.zeros((3, 0))], ids=repr)
def test_an_empty_page_is_rejected(empty: Any) -> None:
    with pytest.raises(ValueError, match="page 1: the buffer is empty"):
        pages_of([b"a", empty], 2, Access.READ)


# ---- torch


def test_tensors_of_each_dtype_are_buffers() -> None:
    torch = pytest.importorskip("torch")
    for name in ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "bool", "complex64"):
        tensor = torch.zeros((2, 3, 8), dtype=getattr(torch, name))
        pages = pages_of(tensor, 2, Access.WRITE)
        assert pages.sizes.tolist() == [24 * tensor.element_size()] * 2
        fill(pages)
        assert set(tensor.view(torch.uint8)[1].flatten().tolist()) == {2}


def test_each_page_may_have_its_own_tensor() -> None:
    torch = pytest.importorskip("torch")
    whole = torch.arange(24, dtype=torch.int16).reshape(3, 8)
    pages = pages_of(list(whole), 3, Access.READ)
    assert contents(pages) == contents(pages_of(whole, 3, Access.READ))
    assert contents(pages_of([whole[1], whole.numpy()], 2, Access.READ))[0] == contents(pages)[1]


def test_memory_of_a_tensor_lives_as_long_as_its_pages() -> None:
    torch = pytest.importorskip("torch")
    pages = pages_of([torch.full((100_000,), n, dtype=torch.uint8) for n in range(20)], 20, Access.READ)
    gc.collect()
    assert contents(pages) == [bytes([n]) * 100_000 for n in range(20)]


def test_tensors_without_plain_host_memory_are_rejected() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="on device meta"):
        pages_of(torch.zeros(4, device="meta"), 2, Access.READ)
    with pytest.raises(TypeError, match=r"page 0: .* on device meta"):
        pages_of([torch.zeros(4, device="meta")], 1, Access.READ)
    for scattered in (
        torch.zeros(4, 4).T,
        torch.zeros(8)[::2],
        torch.zeros(1).expand(4),
        torch.eye(2).to_sparse(),
    ):
        with pytest.raises(ValueError, match="the Tensor is not contiguous"):
            pages_of(scattered, 2, Access.READ)


class Elsewhere:
    """A fake tensor on an accelerator, with the attributes that are read."""

    class device:  # noqa: N801 - torch's name
        type = "cuda"

    def data_ptr(self) -> int:
        raise AssertionError("the address of a device tensor was read")


def test_a_tensor_on_an_accelerator_is_rejected() -> None:
    elsewhere: Any = Elsewhere()
    with pytest.raises(TypeError, match="copies host memory only"):
        pages_of(elsewhere, 1, Access.READ)
