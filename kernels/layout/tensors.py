"""Describes tensors of any library by address and strides, which cache layouts are made of.

Torch tensors are recognised by their methods; this module never imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard

import msgspec
import numpy as np
import numpy.typing as npt


class _Torch(Protocol):
    """The subset of a torch tensor's interface that is used here."""

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
"""A torch tensor on any device, or a writable numpy array."""


class View(msgspec.Struct, frozen=True, eq=False):
    """The location of a tensor's elements, valid while `owner` lives and is not resized.

    `strides` are in bytes, one for each axis of `shape`. `dtype` and `device` use torch's names, such as "bfloat16" and
    "cuda:0".
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str
    device: str
    owner: object

    def at(self, axis: int, index: int) -> View:
        """Returns the view of one index of an axis; the axis is dropped."""
        return self._with(
            self.address + index * self.strides[axis], _without(self.shape, axis), _without(self.strides, axis)
        )

    def part(self, axis: int, first: int, count: int) -> View:
        """Returns the view of `count` indices of an axis, from `first` on."""
        axis %= len(self.shape)
        shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
        return self._with(self.address + first * self.strides[axis], shape, self.strides)

    def permuted(self, *axes: int) -> View:
        """Returns the same elements with their axes permuted."""
        return self._with(self.address, tuple(self.shape[a] for a in axes), tuple(self.strides[a] for a in axes))

    def grown(self, axis: int) -> View:
        """Returns the view with a new axis of length one inserted before `axis`."""
        axis %= len(self.shape) + 1
        shape = (*self.shape[:axis], 1, *self.shape[axis:])
        return self._with(self.address, shape, (*self.strides[:axis], 0, *self.strides[axis:]))

    def _with(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
        return msgspec.structs.replace(self, address=address, shape=shape, strides=strides)


def view_of(tensor: Tensor) -> View:
    """Returns the location of a tensor's elements without copying them.

    Raises:
        TypeError: The argument is no tensor, has no plain memory or is read-only, or its memory does not hold its
            values (quantised tensors, lazily negated or conjugated views, a foreign byte order).
    """
    if isinstance(tensor, np.ndarray):
        return _view_of_array(tensor)
    if _is_torch(tensor):
        return _view_of_torch(tensor)
    raise TypeError(f"a cache consists of tensors, not of {type(tensor).__name__}")


def _view_of_array(array: npt.NDArray[Any]) -> View:
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds references to Python objects, not bytes")
    if not array.dtype.isnative:
        raise TypeError(f"the byte order of the {array.dtype.name} array differs from this machine's")
    if not array.flags.writeable:
        raise TypeError("the array is read-only: pages cannot be loaded into it")
    address: int = array.__array_interface__["data"][0]
    return View(address, array.shape, array.strides, array.itemsize, array.dtype.name, "cpu", array)


def _view_of_torch(tensor: _Torch) -> View:
    size = tensor.element_size()
    try:
        address, strides = tensor.data_ptr(), tuple(stride * size for stride in tensor.stride())
    except RuntimeError as error:  # sparse tensors and tensors without storage
        raise TypeError(f"the tensor has no plain memory: {error}") from error
    if not address and all(tensor.shape):
        raise TypeError(f"the tensor has no plain memory: device {tensor.device} gives it no address")
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        raise TypeError(
            "the tensor's memory does not hold its values: it is quantised, or lazily negated or conjugated"
        )
    dtype = str(tensor.dtype).removeprefix("torch.")
    # Keep the storage alive, not the tensor, which may be given another storage.
    return View(address, tuple(tensor.shape), strides, size, dtype, str(tensor.device), tensor.untyped_storage())


def _is_torch(tensor: object) -> TypeGuard[_Torch]:
    return hasattr(tensor, "data_ptr") and hasattr(tensor, "stride")


def _without(items: tuple[int, ...], axis: int) -> tuple[int, ...]:
    axis %= len(items)
    return items[:axis] + items[axis + 1 :]
