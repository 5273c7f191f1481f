"""Tensors of any library as an address and strides: what the layouts of a cache are made of.

Torch tensors are recognised by what they can do; torch itself is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt


class _Torch(Protocol):
    """What is used of a torch tensor."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def is_quantized(self) -> bool: ...
    def is_conj(self) -> bool: ...
    def is_neg(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def untyped_storage(self) -> object: ...
    def stride(self) -> Sequence[int]: ...
    def element_size(self) -> int: ...


Tensor: TypeAlias = "npt.NDArray[Any] | _Torch"
"""A torch tensor on any device, or a numpy array that can be written to."""


class View(msgspec.Struct, frozen=True, eq=False):
    """Where the elements of a tensor lie, valid while `owner` lives and nobody resizes it.

    strides: in bytes, one for each axis of the shape. dtype, device: by torch's names, such as "bfloat16", "cuda:0".
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    device: str
    owner: object

    def at(self, axis: int, index: int) -> View:
        """One index of an axis, which is gone then."""
        return self._with(
            self.address + index * self.strides[axis], _without(self.shape, axis), _without(self.strides, axis)
        )

    def part(self, axis: int, first: int, count: int) -> View:
        """Some of an axis."""
        axis %= len(self.shape)
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        return self._with(self.address + first * self.strides[axis], shape, self.strides)

    def order(self, *axes: int) -> View:
        """The same elements, their axes in another order."""
        return self._with(self.address, tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes))

    def grown(self, axis: int) -> View:
        """With an axis of one element before `axis`."""
        axis %= len(self.shape) + 1
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self._with(self.address, shape, (*self.strides[:axis], 0, *self.strides[axis:]))

    def _with(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        return msgspec.structs.replace(self, address=address, shape=shape, strides=strides)


def view_of(tensor: Tensor) -> View:
    """Where a tensor lies; nothing is copied.

    Raises TypeError for what is no tensor or has no plain memory, for arrays that can not be written to, and where what
    lies in memory are not the values: quantised tensors, views that negate or conjugate, another machine's byte order.
    """
    if isinstance(tensor, np.ndarray):
        return _view_of_array(tensor)
    if _is_torch(tensor):
        return _view_of_torch(tensor)
    raise TypeError(f"a cache is made of tensors, not of {type(tensor).__name__}")


def _view_of_array(array: npt.NDArray[Any]) -> View:
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds references to Python objects, not bytes")
    if not array.dtype.isnative:
        raise TypeError(f"an array of {array.dtype.name} in another byte order than this machine's")
    if not array.flags.writeable:
        raise TypeError("the array is read-only: no page could be loaded into it")
    address: int = array.__array_interface__["data"][0]
    return View(address, array.shape, array.strides, array.itemsize, array.dtype.name, "cpu", array)


def _view_of_torch(tensor: _Torch) -> View:
    size = tensor.element_size()
    try:
        address, strides = tensor.data_ptr(), tuple(stride * size for stride in tensor.stride())
    except RuntimeError as error:  # sparse tensors and those without storage
        raise TypeError(f"the tensor has no plain memory: {error}") from error
    if not address and all(tensor.shape):
        raise TypeError(f"the tensor has no plain memory: on {tensor.device} it has no address")
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise TypeError("the tensor's memory does not hold its values: it is quantised, or negates or conjugates them")
    dtype = str(tensor.dtype).removeprefix("torch.")
    # the storage, not the tensor, which may be given another one
    return View(address, tuple(tensor.shape), strides, size, dtype, str(tensor.device), tensor.untyped_storage())


def _is_torch(tensor: object) -> TypeGuard[_Torch]:
    return hasattr(tensor, "data_ptr") and hasattr(tensor, "stride")


def _without(items: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(items)
    return items[:axis] + items[axis + 1 :]
