"""Pinning host memory for CUDA, as Pinning wants it; a driver's error becomes a DeviceError."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from .device import DeviceError
from .pinning import Registering, Unregistering

_PORTABLE_AND_MAPPED: Final = 1 | 2  # for every context of the process, and for kernels


class Registrar(NamedTuple):
    """The two functions that a Pinning is made of."""

    register: Registering
    unregister: Unregistering


def cuda_registrar(device: str = "cuda") -> Registrar:
    """For one GPU of this process, by torch's name; "cuda": the calling thread's current one.

    The functions may be called from any thread. They raise DeviceError with the driver's words. Raises DeviceError if
    there is no such GPU.
    """
    index = _index(device)

    def register(address: int, nbytes: int) -> None:
        _call(index, f"pinning {nbytes} bytes", "cudaHostRegister", address, nbytes, _PORTABLE_AND_MAPPED)

    def unregister(address: int) -> None:
        _call(index, "unpinning", "cudaHostUnregister", address)

    return Registrar(register, unregister)


def _index(device: str) -> int:
    try:
        index = torch.device(device).index
        index = torch.cuda.current_device() if index is None else index
        torch.cuda.get_device_capability(index)  # raises if there is none
        return int(index)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise DeviceError(f"{device}: {error}") from error


def _call(index: int, doing: str, name: str, *arguments: int) -> None:
    """A new thread's device is the first, where a call would make a context of some hundred megabytes."""
    with torch.cuda.device(index):
        cudart: Any = torch.cuda.cudart()
        code = getattr(cudart, name)(*arguments)
        if int(code):
            raise DeviceError(f"{doing}: {cudart.cudaGetErrorString(code)} ({name})")
