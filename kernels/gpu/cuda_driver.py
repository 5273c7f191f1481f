"""The few functions of the CUDA driver that torch does not expose, on plain addresses. Every error is a DeviceError."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

from pagetier.kernels.device import DeviceError
from pagetier.kernels.gpu.runs import Addresses

_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING: no implicit synchronisation with the engine's default stream
_SAME_ADDRESS: Final = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
_IN_STREAM_ORDER: Final = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_BESIDE_COMPUTE: Final = 1  # CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: use copy engines, not the model's SMs
_BATCH_SINCE: Final = 12080


class _Location(ctypes.Structure):
    _fields_ = (("type", c_uint), ("id", c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. The locations concern managed memory, which is not used here."""

    _fields_ = (("order", c_uint), ("source", _Location), ("target", _Location), ("flags", c_uint))


BATCH: Final = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p
)
"""cuMemcpyBatchAsync as since CUDA 12.8, with an argument for the failed index, whatever the driver's version."""


class Driver:
    """The driver of one device. Thread-safe. Calls release the GIL and do not block unless they say so."""

    def __init__(self, device: int, library: Any = None) -> None:
        """Opens the driver.

        Args:
            device: The device's index in torch.
            library: An object with the driver's functions; by default the installed driver.
        """
        self._library = _library() if library is None else library
        self._thread = threading.local()
        self._device, self._context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(self._device), c_int(device))
        # Take another reference to the context that torch has, and never give it back: streams stay usable.
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        found = _batch_entry(self._library)
        self._batch: Any = BATCH(found) if found else None

    def enter(self) -> None:
        """Makes this device current in the calling thread and, the first time, relaxes its stream capture mode.

        Only threads of pagetier may call it, before anything else: an engine's thread would capture graphs differently.
        """
        self._call("cuCtxSetCurrent", self._context)
        if getattr(self._thread, "entered", False):
            return
        # While an engine captures a CUDA graph in global mode (torch's default), calls that do not belong into a
        # graph, such as querying an event or allocating, fail in every thread that is not relaxed, and the engine's
        # capture fails with them. The copies are never meant to be captured and use streams of their own.
        self._exchange(_RELAXED)
        self._thread.entered = True

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Relaxes the calling thread's capture mode, see enter(), and restores it afterwards. For any thread."""
        before = self._exchange(_RELAXED)
        try:
            yield
        finally:
            self._exchange(before)

    def _exchange(self, mode: int) -> int:
        """Sets this thread's capture mode and returns the previous one."""
        its = c_int(mode)
        self._call("cuThreadExchangeStreamCaptureMode", byref(its))
        return its.value

    def stream(self, urgent: int = 0) -> int:
        """Returns the handle of a new stream, which is never destroyed.

        Torch would hand out one of its 32 streams, which could be the engine's own.

        Args:
            urgent: 0 for the lowest priority, or how much higher, limited to what the device supports.

        Returns:
            The stream's handle.
        """
        least, greatest, handle = c_int(), c_int(), c_void_p()
        with self.relaxed(), self._inside():
            self._call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
            priority = max(greatest.value, -urgent)
            self._call("cuStreamCreateWithPriority", byref(handle), c_uint(_NON_BLOCKING), c_int(priority))
        return handle.value or 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Makes this device current for a call from any thread, and restores the previous one afterwards."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    @property
    def same_addresses(self) -> bool:
        """Whether the device accesses registered host memory at the host's addresses."""
        answer = c_int()
        self._call("cuDeviceGetAttribute", byref(answer), c_int(_SAME_ADDRESS), self._device)
        return bool(answer.value)

    @property
    def batches(self) -> bool:
        """Whether copy_batch() is available: it needs a driver of CUDA 12.8 or later."""
        return self._batch is not None

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Enqueues one copy in stream order. Blocks until it has ended if the host memory is not registered."""
        self._call("cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(nbytes), c_void_p(stream))

    def copy_batch(self, targets: Addresses, sources: Addresses, nbytes: Addresses, stream: int) -> None:
        """Enqueues copies of registered memory in one call, unordered among themselves. The arrays are read at once."""
        attributes = _Attributes(order=_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)
        arrays = (its.ctypes.data for its in (targets, sources, nbytes))
        # One set of attributes applies to all copies, from copy 0 on.
        which, failed = c_size_t(0), c_size_t(0)
        code = self._batch(*arrays, len(nbytes), byref(attributes), byref(which), 1, byref(failed), stream)
        self._check("cuMemcpyBatchAsync", code)

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"the CUDA driver has no {name}") from None
        self._check(name, function(*arguments))

    def _check(self, name: str, code: int) -> None:
        if code:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(text))
            raise DeviceError(f"{name}: {(text.value or b'error').decode()} ({code})")


def _library() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError(f"cannot load the CUDA driver: {error}") from error


def _batch_entry(library: Any) -> int:
    """Returns the address of the batched copy function, 0 if there is none; asks cuda-bindings where installed.

    Their own wrapper is not used: it makes three Python integers of each run and holds the GIL, 0.4 µs a run, in which
    the bus moves 20 KiB; and its arguments differ between versions 12 and 13.
    """
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
        error, address, _ = bindings.cuGetProcAddress(b"cuMemcpyBatchAsync", _BATCH_SINCE, 0)
    except (ImportError, AttributeError, RuntimeError):  # RuntimeError if the bindings do not find the driver
        return _entry(library)
    return 0 if int(error) else int(address or 0)


def _entry(library: Any) -> int:
    address, status = c_void_p(), c_int()
    try:
        look_up = library.cuGetProcAddress_v2
    except AttributeError:  # a driver before CUDA 12
        return 0
    error = look_up(b"cuMemcpyBatchAsync", byref(address), c_int(_BATCH_SINCE), c_uint64(0), byref(status))
    return 0 if error else address.value or 0
