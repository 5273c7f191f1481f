"""Pinning host memory for CUDA, as Pinning wants it; a driver's error becomes a DeviceError."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from .device import DeviceError
from .driver import Driver
from .pinning import Registering, Unregistering

_PORTABLE_AND_MAPPED: Final = 1 | 2  # for every context of the process, and for kernels


class Registrar(NamedTuple):
    """The two functions that a Pinning is made of."""

    register: Registering
    unregister: Unregistering


def cuda_registrar(device: str = "cuda", driver: Driver | None = None) -> Registrar:
    """For one GPU of this process, by torch's name; "cuda": the calling thread's current one.

    The functions may be called from any thread, also while an engine captures a graph. They raise DeviceError with the
    driver's words. Raises DeviceError if there is no such GPU. driver: of this GPU.
    """
    index = _index(device)
    its = Driver(index) if driver is None else driver

    def register(address: int, nbytes: int) -> None:
        doing = f"pinning {nbytes} bytes"
        _call(its, index, doing, "cudaHostRegister", address, nbytes, _PORTABLE_AND_MAPPED)

    def unregister(address: int) -> None:
        _call(its, index, "unpinning", "cudaHostUnregister", address)

    return Registrar(register, unregister)


def _index(device: str) -> int:
    try:
        index = torch.device(device).index
        index = torch.cuda.current_device() if index is None else index
        torch.cuda.get_device_capability(index)  # raises if there is none
        return int(index)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise DeviceError(f"{device}: {error}") from error


def _call(driver: Driver, index: int, doing: str, name: str, *arguments: int) -> None:
    """A new thread's device is the first, where a call would make a context of some hundred megabytes."""
    with torch.cuda.device(index), driver.relaxed():
        cudart: Any = torch.cuda.cudart()
        code = getattr(cudart, name)(*arguments)
        if int(code):
            raise DeviceError(f"{doing}: {cudart.cudaGetErrorString(code)} ({name})")
