"""A simulated GPU for rehearsals: the CUDA device over a simulated driver, with memory of the host.

The kernels run in Triton's interpreter, which takes 20 ms for a layer of a page, so pages are few and small. This needs
tests/harness on the import path, and TRITON_INTERPRET=1 in the environment. As a command it runs `pagetier` with that
GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

import msgspec
import torch

from fake_cuda import SimulatedDriver, SimulatedTorch
from pagetier.client.cli.calibrate import measure
from pagetier.client.cli.calibrate.measure import Scene, Streams, Timing
from pagetier.kernels.config.copy_settings import CopySettings, PathName
from pagetier.kernels.device import Direction
from pagetier.kernels.gpu import cuda
from pagetier.kernels.gpu.cuda import CudaDevice, CudaStream
from pagetier.kernels.gpu.cuda_driver import Driver

KIB = 1 << 10
PAGE, FRAME = 32 * KIB, 16 * KIB
RUNS = (8 * KIB, 16 * KIB)


class HostMemoryDevice(CudaDevice):
    """The CUDA device for caches in host memory."""

    name = "cpu"


def simulated_streams(index: int, settings: CopySettings) -> Streams:
    """Returns a function that makes streams, in place of gpu_streams()."""

    def stream(path: PathName, direction: Direction) -> CudaStream:
        chosen = msgspec.structs.replace(settings, path=path)
        return HostMemoryDevice(index, chosen, lambda frames: True, Driver(index, SimulatedDriver())).stream(direction)

    return stream


def on_host(device: str, nbytes: int) -> Scene:
    """Returns a scene in host memory, whatever device it is for."""
    return Scene("cpu", nbytes)


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Replaces the GPU, and the measurements of `pagetier-bench calibrate` by short ones, while the context lasts."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1: without a GPU the kernels run in Triton's interpreter")
    short = Timing(total_bytes=PAGE, chunk_bytes=PAGE, rounds=1, runs=RUNS)
    with ExitStack() as stack:
        stack.enter_context(patch.object(cuda, "torch", SimulatedTorch()))
        for name, value in (
            ("PAGE_BYTES", PAGE),
            ("FRAME_BYTES", FRAME),
            ("gpu_streams", simulated_streams),
            ("Scene", on_host),
            ("measure_gpu", partial(measure.measure_gpu, timing=short)),
        ):
            stack.enter_context(patch.object(measure, name, value))
        stack.enter_context(patch.object(torch.cuda, "get_device_name", lambda index=0: f"simulated GPU {index}"))
        yield


if __name__ == "__main__":
    from pagetier.client.cli.bench.command import main

    with simulated_gpu():
        main()
