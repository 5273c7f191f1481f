"""CUDA's functions that pin memory: their device, their errors as exceptions, and their effect on a real GPU."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from eventually import PATIENCE_S
from fake_pinning_driver import BASE, SMALL
from pagetier.kernels.device import DeviceError
from pagetier.kernels.pinning.cuda_registrar import cuda_registrar
from pagetier.kernels.pinning.pinning import Pinning

MIB = 1 << 20


class Cudart:
    """CUDA's runtime as torch exposes it, on a machine with two GPUs."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.devices: list[int] = []
        self.code = 0
        self.is_relaxed = False

    def cudaHostRegister(self, *arguments: int) -> int:  # noqa: N802
        assert self.is_relaxed
        self.calls.append(("register", self.devices[-1], *arguments))
        return self.code

    def cudaHostUnregister(self, *arguments: int) -> int:  # noqa: N802
        assert self.is_relaxed
        self.calls.append(("unregister", self.devices[-1], *arguments))
        return self.code

    def cudaGetErrorString(self, code: int) -> str:  # noqa: N802
        return f"words for {code}"

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Implements Driver.relaxed(), which an engine needs while it captures a graph."""
        self.is_relaxed = True
        yield
        self.is_relaxed = False

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.devices.append(index)
        yield
        self.devices.pop()


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    fake = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "device", fake.device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr("pagetier.kernels.pinning.cuda_registrar.Driver", lambda index: fake)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    return fake


def test_cuda_pins_on_the_device_that_was_meant(cudart: Cudart) -> None:
    register, unregister = cuda_registrar("cuda:0")
    register(BASE, SMALL)
    unregister(BASE)
    cuda_registrar().register(BASE, SMALL)
    assert cudart.calls == [("register", 0, BASE, SMALL, 3), ("unregister", 0, BASE), ("register", 1, BASE, SMALL, 3)]
    assert not cudart.devices


def test_cudas_errors_are_exceptions(cudart: Cudart, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pagetier.kernels.pinning.pinning")
    cudart.code = 2
    register, unregister = cuda_registrar()
    with pytest.raises(DeviceError, match=r"pinning 4096 bytes: words for 2 \(cudaHostRegister\)"):
        register(BASE, SMALL)
    with pytest.raises(DeviceError, match=r"unpinning: words for 2 \(cudaHostUnregister\)"):
        unregister(BASE)
    with Pinning(BASE, SMALL, register, unregister) as pinned:
        assert pinned.wait(PATIENCE_S)
        assert "words for 2" in pinned.state
    assert "words for 2" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_no_registrar() -> None:
    for device in ("cuda", "cuda:3", "nonsense"):
        with pytest.raises(DeviceError, match=f"^{device}: "):
            cuda_registrar(device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_knows_the_memory_as_pinned_until_it_is_closed() -> None:
    with mmap.mmap(-1, 9 * MIB) as memory:
        host = torch.frombuffer(memory, dtype=torch.uint8)
        with Pinning(host.data_ptr(), len(memory), *cuda_registrar("cuda:0"), chunk=4 * MIB) as pinned:
            assert pinned.wait(PATIENCE_S)
            assert pinned.progress == 1.0
            assert all(host[at * MIB :].is_pinned() for at in range(9))
        assert not host.is_pinned()
        del host
