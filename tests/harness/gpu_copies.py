"""Copies on a real GPU, for tests: devices that all tests share, and pinned host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_uint, c_uint64, c_void_p
from functools import cache, partial
from typing import Any

import torch

from fake_cuda import in_thread
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.cuda import CudaDevice, CudaEvent, CudaStream

_AT_LEAST = 0  # CU_STREAM_WAIT_VALUE_GEQ


@cache
def device_of(path: Any = "auto", pinned: bool = True, staging: int = 1 << 25) -> CudaDevice:
    return CudaDevice(0, CopySettings(path=path, staging=staging), lambda _: pinned)


@cache
def stream_of(device: CudaDevice, direction: Direction) -> CudaStream:
    """Returns one device for all tests, because streams are never freed; threads use it one after another."""
    stream: CudaStream = in_thread(partial(device.stream, direction))
    return stream


def begun(device: CudaDevice, copies: list[Copy], after: Any = None) -> CudaEvent:
    """Enqueues copies in a thread, and returns the event behind them."""
    stream = stream_of(device, copies[0].direction)

    def enqueue() -> CudaEvent:
        if after is not None:
            stream.after(after)
        for copy in copies:
            stream.enqueue(copy)
        return stream.record()

    event: CudaEvent = in_thread(enqueue)
    return event


class Gate:
    """Holds a stream back until open(): the work behind hold() begins then, however long that takes."""

    def __init__(self) -> None:
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2

    def hold(self, stream: Any) -> None:
        arguments = c_void_p(stream.cuda_stream), c_uint64(self._word.data_ptr()), c_uint(1), c_uint(_AT_LEAST)
        assert self._wait(*arguments) == 0

    def open(self) -> None:
        self._word[0] = 1


@contextmanager
def registered(address: int, nbytes: int) -> Iterator[None]:
    """Pins host memory while the context lasts."""
    cudart = torch.cuda.cudart()
    torch.cuda.check_error(cudart.cudaHostRegister(address, nbytes, 0))
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.check_error(cudart.cudaHostUnregister(address))
