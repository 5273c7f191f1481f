"""The few functions of CUDA's driver that torch does not show, on plain addresses. Every error is a DeviceError."""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final

from .device import DeviceError
from .runs import Addresses

_RELAXED: Final = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_NON_BLOCKING: Final = 1  # CU_STREAM_NON_BLOCKING: the engine's default stream and ours do not wait for each other
_SAME_ADDRESS: Final = 91  # CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
_IN_STREAM_ORDER: Final = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_BESIDE_COMPUTE: Final = 1  # CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE: by copy engines, not by the model's processors
_BATCH_SINCE: Final = 12080


class _Location(ctypes.Structure):
    _fields_ = (("type", c_uint), ("id", c_int))


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes. The places are for managed memory, of which there is none here."""

    _fields_ = (("order", c_uint), ("source", _Location), ("target", _Location), ("flags", c_uint))


BATCH: Final = ctypes.CFUNCTYPE(
    c_int, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p
)
"""cuMemcpyBatchAsync as it is since CUDA 12.8, with a place for the failed index, whatever the driver's version."""


class Driver:
    """Of one device. Calls let the GIL go, and none of them waits, unless it says so. May be used from any thread."""

    def __init__(self, device: int, library: Any = None) -> None:
        """device: counted as torch does. library: what has the functions; by default the driver that is installed."""
        self._library = _library() if library is None else library
        self._thread = threading.local()
        self._device, self._context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(self._device), c_int(device))
        # One reference more to the context that torch has, and it is never given back: streams stay usable.
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), self._device)
        found = _batch_entry(self._library)
        self._batch: Any = BATCH(found) if found else None

    def enter(self) -> None:
        """Makes this thread one that uses this device. Its capture mode is changed the first time.

        To be called by threads of ours before anything else: an engine's would capture graphs otherwise than it says.
        """
        self._call("cuCtxSetCurrent", self._context)
        if getattr(self._thread, "entered", False):
            return
        # While an engine captures a CUDA graph in global mode (torch's default), calls that might not belong into a
        # graph, such as asking an event or allocating, fail in every thread that is not relaxed, and the engine's
        # capture fails with them. Ours are never meant to be captured, and are enqueued to streams of ours alone.
        self._exchange(_RELAXED)
        self._thread.entered = True

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """For a call of any thread: in relaxed capture mode, see enter(), and afterwards in the mode that was."""
        before = self._exchange(_RELAXED)
        try:
            yield
        finally:
            self._exchange(before)

    def _exchange(self, mode: int) -> int:
        """Puts this thread into a capture mode, and says in which one it was."""
        its = c_int(mode)
        self._call("cuThreadExchangeStreamCaptureMode", byref(its))
        return its.value

    def stream(self, urgent: int = 0) -> int:
        """A new stream's handle; it is never destroyed. urgent: 0, or how much more than others, cut to what there is.

        Torch hands out 32 streams in turn, and so might give us the engine's own.
        """
        least, greatest, handle = c_int(), c_int(), c_void_p()
        with self.relaxed(), self._inside():
            self._call("cuCtxGetStreamPriorityRange", byref(least), byref(greatest))
            priority = max(greatest.value, -urgent)
            self._call("cuStreamCreateWithPriority", byref(handle), c_uint(_NON_BLOCKING), c_int(priority))
        return handle.value or 0

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """For calls of any thread: on this device, and afterwards on the one that was current."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))

    @property
    def same_addresses(self) -> bool:
        """Whether the device knows registered host memory by the host's addresses."""
        answer = c_int()
        self._call("cuDeviceGetAttribute", byref(answer), c_int(_SAME_ADDRESS), self._device)
        return bool(answer.value)

    @property
    def batches(self) -> bool:
        """Whether there is copy_batch(): drivers of CUDA 12.8 and later have it."""
        return self._batch is not None

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """One copy in the order of the stream. Waits for its end where the host's side is not registered."""
        self._call("cuMemcpyAsync", c_uint64(target), c_uint64(source), c_size_t(nbytes), c_void_p(stream))

    def copy_batch(self, targets: Addresses, sources: Addresses, nbytes: Addresses, stream: int) -> None:
        """Copies in no order among themselves, all of registered memory, in one call. The arrays are read at once."""
        attributes = _Attributes(order=_IN_STREAM_ORDER, flags=_BESIDE_COMPUTE)
        arrays = (its.ctypes.data for its in (targets, sources, nbytes))
        # One set of attributes, which applies from copy 0 on.
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
        raise DeviceError(f"there is no CUDA driver: {error}") from error


def _batch_entry(library: Any) -> int:
    """Where the batched copy begins, 0 if there is none: by cuda-bindings where they are installed.

    Their own wrapper is not called: it makes three Python integers of each run and holds the GIL meanwhile, 0.4 µs a
    run, in which the bus moves 20 KiB; and its arguments are others in versions 12 and 13.
    """
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
        error, address, _ = bindings.cuGetProcAddress(b"cuMemcpyBatchAsync", _BATCH_SINCE, 0)
    except (ImportError, AttributeError, RuntimeError):  # the last if they do not find the driver
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
