"""Converts host memory in any form that a caller has into plain addresses for the copy path.

Torch tensors are recognised by their methods; this module never imports torch.
"""

import re
from collections.abc import Sequence
from ctypes import addressof, c_char
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, cast

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer  # collections.abc has it from 3.12 on


class Access(Enum):
    """Whether the caller reads or writes the memory."""

    READ = "read"
    WRITE = "write"


class _Tensor(Protocol):
    """The subset of a torch tensor's interface that is used here."""

    @property
    def device(self) -> Any: ...
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...
    def is_contiguous(self) -> bool: ...


HostBuffer: TypeAlias = "Buffer | npt.NDArray[Any] | _Tensor"
"""One piece of host memory in C order: bytes, bytearray, memoryview, mmap, array.array, a numpy array of any dtype
without Python objects, or a torch CPU tensor of any dtype.
"""

HostBuffers: TypeAlias = "HostBuffer | Sequence[HostBuffer]"
"""All pages in one buffer, one after the other, or a sequence of buffers, one for each page."""


class Span(msgspec.Struct, frozen=True, eq=False):
    """`nbytes` bytes of memory from `address` on, valid while this object lives."""

    address: int
    nbytes: int
    owner: object


class HostPages(msgspec.Struct, frozen=True, eq=False):
    """The location of each page in host memory, valid while this object lives.

    Attributes:
        addresses: u64 array, one address a page.
        sizes: u64 array, the size of each page in bytes, 1 or more.
        owners: Objects that keep the memory alive. Meanwhile a bytearray among them cannot be resized.
    """

    addresses: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
    owners: tuple[object, ...]

    def __len__(self) -> int:
        return len(self.addresses)

    @property
    def nbytes(self) -> int:
        """The total size of the pages in bytes."""
        return int(self.sizes.sum())

    def __repr__(self) -> str:
        pages = "1 page" if len(self) == 1 else f"{len(self)} pages"
        return f"<HostPages {pages}, {self.nbytes / 2**20:.1f} MiB>"


def pages_of(buffers: HostBuffers, count: int, access: Access) -> HostPages:
    """Returns the memory of `count` pages.

    The caller guarantees that the memory under a tensor is not resized or freed while the result lives.

    Args:
        buffers: One buffer, which the pages share evenly, or a sequence of `count` buffers of any sizes.
        count: The number of pages.
        access: WRITE if the pages are to be filled.

    Returns:
        The address and size of each page.

    Raises:
        TypeError: The argument is not host memory (a tensor on a device, an array of Python objects), or it is
            read-only and must be writable.
        ValueError: The memory is not contiguous, a page is empty, `count` does not divide the size, or the number of
            buffers differs.
    """
    if _is_one(buffers):
        return _shared(span_of(buffers, access), count)
    return _one_each(buffers, count, access)


def page_count(buffers: HostBuffers, page_bytes: int) -> int:
    """Returns the number of pages in `buffers`: one in each buffer of a sequence, `page_bytes` each in one buffer.

    Raises:
        ValueError: The size of the one buffer is not a multiple of `page_bytes`. Also raises as pages_of() does.
    """
    if not _is_one(buffers):
        return len(cast("Sequence[HostBuffer]", buffers))
    nbytes = span_of(buffers, Access.READ).nbytes
    if nbytes % page_bytes:
        raise ValueError(f"a buffer of {nbytes} bytes does not hold whole pages of {page_bytes} bytes")
    return nbytes // page_bytes


def span_of(buffer: HostBuffer, access: Access) -> Span:
    """Returns the memory of one buffer, which may be empty. Raises as pages_of() does."""
    if isinstance(buffer, np.ndarray):
        return _span_of_array(buffer, access)
    if _is_tensor(buffer):
        return _span_of_tensor(buffer)
    return _span_of_view(_view_of(buffer), access)


def _is_one(buffers: object) -> TypeGuard[HostBuffer]:
    """Returns False for a sequence of buffers. Strings, bytes and array.array are sequences too, but of their items."""
    if isinstance(buffers, (list, tuple)):
        return False
    if isinstance(buffers, np.ndarray):  # asking the registry of Sequence takes several times as long
        return True
    return not isinstance(buffers, Sequence) or isinstance(buffers, str) or _has_memory(buffers)


def _has_memory(buffer: Any) -> bool:
    try:
        memoryview(buffer).release()
    except (TypeError, BufferError):
        return False
    return True


def _is_tensor(buffer: object) -> TypeGuard[_Tensor]:
    return hasattr(buffer, "data_ptr")


def _shared(span: Span, count: int) -> HostPages:
    if count < 0 or span.nbytes % max(count, 1) or bool(span.nbytes) != bool(count):
        raise ValueError(f"a buffer of {span.nbytes} bytes does not divide into {count} pages")
    size = span.nbytes // max(count, 1)
    addresses = np.arange(span.address, span.address + span.nbytes, max(size, 1), dtype=np.uint64)
    sizes = np.empty(count, dtype=np.uint64)  # np.full takes longer
    sizes.fill(size)
    return HostPages(addresses, sizes, (span.owner,))


def _one_each(buffers: Any, count: int, access: Access) -> HostPages:
    if len(buffers) != count:
        raise ValueError(f"{len(buffers)} buffers for {count} pages")
    spans = [_span_of_page(page, buffer, access) for page, buffer in enumerate(buffers)]
    addresses = np.array([span.address for span in spans], dtype=np.uint64)
    sizes = np.array([span.nbytes for span in spans], dtype=np.uint64)
    return HostPages(addresses, sizes, tuple(span.owner for span in spans))


def _span_of_page(page: int, buffer: Any, access: Access) -> Span:
    try:
        span = span_of(buffer, access)
    except TypeError as error:
        raise TypeError(f"page {page}: {error}") from error
    except ValueError as error:
        raise ValueError(f"page {page}: {error}") from error
    if not span.nbytes:
        raise ValueError(f"page {page}: the buffer is empty")
    return span


def _span_of_array(array: npt.NDArray[Any], access: Access) -> Span:
    flags = array.flags
    if not flags.c_contiguous:
        raise _scattered(array)
    if access is Access.WRITE and not flags.writeable:
        raise _read_only(array)
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds references to Python objects, not bytes")
    return Span(array.__array_interface__["data"][0], array.nbytes, array)


def _span_of_tensor(tensor: _Tensor) -> Span:
    if tensor.device.type != "cpu":
        raise TypeError(f"the tensor is on device {tensor.device}, but this function copies host memory only")
    try:
        if not tensor.is_contiguous():
            raise _scattered(tensor)
        return Span(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)
    except RuntimeError as error:  # sparse tensors and tensors without storage
        raise TypeError(f"the tensor has no plain memory: {error}") from error


def _view_of(buffer: Any) -> memoryview:
    try:
        return memoryview(buffer)
    except (TypeError, BufferError):
        raise TypeError(f"{type(buffer).__name__} is not a buffer in host memory") from None


def _span_of_view(view: memoryview, access: Access) -> Span:
    if not view.c_contiguous:
        raise _scattered(view.obj)
    if access is Access.WRITE and view.readonly:
        raise _read_only(view.obj)
    if _has_objects(view.format):
        raise TypeError(f"the {type(view.obj).__name__} holds references to Python objects, not bytes")
    if view.readonly or not view.nbytes:
        return _span_of_array(np.frombuffer(view, dtype=np.uint8), access)
    owner = c_char.from_buffer(view)  # half the cost of numpy, but not available for read-only memory
    return Span(addressof(owner), view.nbytes, owner)


def _has_objects(layout: str) -> bool:
    """Returns whether a buffer's format has an O outside of its fields' names."""
    return "O" in layout and "O" in re.sub(":[^:]*:", "", layout)


def _scattered(buffer: object) -> ValueError:
    return ValueError(f"the {type(buffer).__name__} is not contiguous in C order: copy it to a contiguous one first")


def _read_only(buffer: object) -> TypeError:
    return TypeError(f"the {type(buffer).__name__} is read-only")
