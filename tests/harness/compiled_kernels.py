"""Compiles kernels for GPUs that are absent, with the options of a launch, and reads properties of the result."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pagetier.kernels.gpu.launch import GRID

TARGETS = {f"sm_{number}": GPUTarget("cuda", number, 32) for number in (80, 89, 90, 100, 120)}
TARGETS["gfx942"] = GPUTarget("hip", "gfx942", 64)
TABLES = {"planes": "*i64", "pages": "*i64", "blocks": "*i32", "skip": "*u8", "frames": "*i32"}


def compiled(kernel: Any, unit: int, target: str) -> Any:
    """Returns Triton's CompiledKernel as a launch would compile it, with the types of the kernel's annotations."""
    types = {
        parameter.name: "constexpr" if parameter.is_constexpr else parameter.annotation_type
        for parameter in kernel.params
    }
    aligned = {(kernel.arg_names.index(table),): [["tt.divisibility", 16]] for table in TABLES}
    source = ASTSource(kernel, types | TABLES, {"UNIT": unit, "TILE": GRID.tile}, aligned)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": GRID.warps, "num_stages": 1})


def global_accesses(ptx: str) -> dict[str, list[int]]:
    """Returns the widths in bits of all global loads ("ld") and stores ("st") of a kernel, in order."""
    found: dict[str, list[int]] = {"ld": [], "st": []}
    for kind, modifiers in re.findall(r"\b(ld|st)(?:\.volatile)?\.global((?:[.:\w])*)", ptx):
        vector = re.search(r"\.v(\d)", modifiers)
        (bits,) = re.findall(r"\.[bsuf](\d+)$", modifiers)
        found[kind].append(int(bits) * int(vector[1] if vector else 1))
    return found


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Returns a kernel's resources per thread (REG, STACK, LOCAL, ...), read by NVIDIA's tool from the cubin."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = triton.knobs.nvidia.cuobjdump.path
    output = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    return {name: int(count) for name, count in re.findall(r"\b([A-Z]+):(\d+)", output)}


def amd_resources(assembly: str) -> dict[str, int]:
    """Returns the resources that AMD's assembly states: vgpr_spill_count, private_segment_fixed_size and so on."""
    return {name: int(count) for name, count in re.findall(r"^\s*\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
