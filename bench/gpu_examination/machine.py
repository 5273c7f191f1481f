"""Prints what a result on this machine depends on, one JSON object a fact. Needs torch and nothing else."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GPU_FACTS = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm"


def facts(bundle: Path) -> Iterator[tuple[str, object]]:
    """Yields the name and the value of each fact."""
    yield "python", sys.version.split()[0]
    yield "kernel", platform.release()
    yield "libc", " ".join(platform.libc_ver())
    yield "cores", len(os.sched_getaffinity(0))
    yield "memory_gib", round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    yield "shared_memory_gib", round(shutil.disk_usage("/dev/shm").free / 2**30, 1)
    yield "commit", output("cat", str(bundle / "commit"))
    yield from ((name, shutil.which(name) or "not on PATH") for name in ("compute-sanitizer", "gcc", "nvcc"))
    yield "gpu", output("nvidia-smi", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader")
    yield from torch_facts()


def torch_facts() -> Iterator[tuple[str, object]]:
    """Yields the versions of torch and Triton, and the number of GPUs that torch finds."""
    import torch
    import triton

    yield "torch", torch.__version__
    yield "triton", triton.__version__
    yield "gpus", torch.cuda.device_count()


def output(*command: str) -> str:
    """Returns the first line that a program prints, or why there is none."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition("\n")[0]
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown: {error}"


if __name__ == "__main__":
    for name, value in facts(Path(sys.argv[1])):
        print(json.dumps({"name": name, "value": value}), flush=True)
