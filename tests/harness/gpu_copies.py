"""Copies on a real GPU, for tests: devices that all tests share, and pinned host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch

from fake_cuda import in_thread
from pagetier.kernels.config.copy_settings import CopySettings
from pagetier.kernels.device import Copy, Direction
from pagetier.kernels.gpu.cuda import CudaDevice, CudaEvent, CudaStream


@cache
def device_of(way: Any = "auto", pinned: bool = True, staging: int = 1 << 25) -> CudaDevice:
    return CudaDevice(0, CopySettings(path=way, staging=staging), lambda _: pinned)


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
