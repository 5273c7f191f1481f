"""Tensors as addresses and strides, and rejected objects."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pagetier.kernels.layout.tensors import View, view_of

torch = pytest.importorskip("torch")


def element(view: View, *index: int) -> int:
    return view.address + sum(at * stride for at, stride in zip(index, view.strides, strict=True))


@pytest.mark.parametrize(
    "name", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool", "complex64"]
)
def test_a_torch_tensor_has_address_and_strides(name: str) -> None:
    tensor = torch.zeros((4, 3, 5), dtype=getattr(torch, name))[1:, :, 2:].transpose(0, 1)
    view = view_of(tensor)
    size = tensor.element_size()
    assert (view.dtype, view.device, view.itemsize, view.shape) == (name, "cpu", size, (3, 3, 3))
    assert view.strides == (5 * size, 15 * size, size)
    assert element(view, 2, 1, 1) == tensor[2, 1, 1].data_ptr()
    assert isinstance(view.owner, torch.UntypedStorage) and view.owner.data_ptr() == tensor.untyped_storage().data_ptr()


def test_torch_and_numpy_agree() -> None:
    array = np.zeros((4, 3, 5), np.float32)[::2]
    mine, its = view_of(array), view_of(torch.from_numpy(array))
    assert (mine.address, mine.shape, mine.strides) == (its.address, its.shape, its.strides)
    assert (mine.itemsize, mine.dtype, mine.device) == (its.itemsize, its.dtype, its.device)


def test_tensors_with_gradients_are_accepted() -> None:
    """An engine without no_grad may store its results."""
    assert view_of(torch.zeros(2, 3).requires_grad_()).shape == (2, 3)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_a_view_can_be_indexed_and_reordered_like_an_array(axis: int) -> None:
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    view = view_of(array)

    def same(one: View, other: Any) -> bool:
        its = view_of(other)
        return (one.address, one.shape, one.strides) == (its.address, its.shape, its.strides)

    assert same(view.at(axis, 2), np.moveaxis(array, axis, 0)[2])
    assert same(view.part(axis, 1, 2), np.moveaxis(np.moveaxis(array, axis, 0)[1:3], 0, axis))
    assert same(view.permuted(2, 0, 1), array.transpose(2, 0, 1))
    assert view.grown(axis).shape == np.expand_dims(array, axis).shape
    grown = view.grown(axis)
    assert grown.at(axis, 0).strides == view.strides


@pytest.mark.parametrize(
    "what", [None, 7, "text", b"bytes", [1.0], bytearray(8), torch.zeros(2).untyped_storage(), torch.nn.Identity()]
)
def test_other_objects_are_rejected(what: Any) -> None:
    with pytest.raises(TypeError, match=f"a cache consists of tensors, not of {type(what).__name__}"):
        view_of(what)


@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.zeros(2, 3, device="meta")],
    ids=["sparse", "meta"],
)
def test_tensors_without_plain_memory_are_rejected(tensor: Any) -> None:
    with pytest.raises(TypeError, match="the tensor has no plain memory"):
        view_of(tensor)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_memory_that_does_not_hold_the_values() -> None:
    quantised = torch.quantize_per_tensor(torch.zeros(2, 3), 0.1, 0, torch.qint8)
    negative, conjugate = torch._neg_view(torch.zeros(3)), torch.zeros(3, dtype=torch.complex64).conj()
    for tensor in (quantised, negative, conjugate):
        with pytest.raises(TypeError, match="quantised, or lazily negated or conjugated"):
            view_of(tensor)
    assert view_of(conjugate.resolve_conj()).dtype == "complex64"


def test_read_only_arrays_are_rejected() -> None:
    array = np.frombuffer(bytes(8), np.uint8)
    with pytest.raises(TypeError, match="read-only: pages cannot be loaded"):
        view_of(array)
    with pytest.raises(TypeError, match="read-only"):
        view_of(np.broadcast_to(np.zeros(3), (2, 3)))


def test_arrays_of_objects_are_rejected() -> None:
    with pytest.raises(TypeError, match="references to Python objects"):
        view_of(np.array([None, 1]))
    with pytest.raises(TypeError, match="the byte order of the int32 array differs"):
        view_of(np.zeros(2, ">i4"))
