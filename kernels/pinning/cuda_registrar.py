"""Pins host memory for CUDA in the form that Pinning needs; a driver's error becomes a DeviceError."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from pagetier.kernels.device import DeviceError
from pagetier.kernels.gpu.cuda_driver import Driver
from pagetier.kernels.pinning.pinning import Registering, Unregistering

_PORTABLE_AND_MAPPED: Final = 1 | 2  # for every context of the process, and mapped for kernels


class Registrar(NamedTuple):
    """The two functions that a Pinning needs."""

    register: Registering
    unregister: Unregistering


def cuda_registrar(device: str = "cuda", driver: Driver | None = None) -> Registrar:
    """Returns the functions that pin and unpin memory for one GPU.

    They may be called from any thread, also while an engine captures a graph, and raise DeviceError with the driver's
    message.

    Args:
        device: The GPU's torch name; "cuda" is the calling thread's current one.
        driver: The driver of this GPU; by default a new one.

    Returns:
        The two functions.

    Raises:
        DeviceError: There is no such GPU.
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
    """Calls CUDA on this device: on a new thread's default device the call would create a context of some 100 MB."""
    with torch.cuda.device(index), driver.relaxed():
        cudart: Any = torch.cuda.cudart()
        code = getattr(cudart, name)(*arguments)
        if int(code):
            raise DeviceError(f"{doing}: {cudart.cudaGetErrorString(code)} ({name})")
