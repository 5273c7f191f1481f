"""Each variant of the kernels compiles, without a GPU, for each supported GPU, and to the intended memory accesses."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pagetier.kernels.gpu import triton_kernels
from pagetier.kernels.gpu.launch import GRID, Grid

TARGETS = {f"sm_{number}": GPUTarget("cuda", number, 32) for number in (80, 89, 90, 100, 120)}
TARGETS["gfx942"] = GPUTarget("hip", "gfx942", 64)
TABLES = {"planes": "*i64", "pages": "*i64", "blocks": "*i32", "skip": "*u8", "frames": "*i32"}
UNITS = [16, 8, 4, 2, 1]
NVIDIA = [name for name in TARGETS if name.startswith("sm_")]
PAIR = {"gather": triton_kernels.gather, "scatter": triton_kernels.scatter}

# Triton tells everybody of a default of its own that will change; there is nothing here that it would change.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
    pytest.mark.parametrize("kernel", PAIR.values(), ids=PAIR),
    pytest.mark.parametrize("unit", UNITS),
]


def compiled(kernel: Any, unit: int, target: str, grid: Grid = GRID) -> Any:
    """Returns Triton's CompiledKernel as a launch would compile it, with the types of the kernel's annotations."""
    types = {
        parameter.name: "constexpr" if parameter.is_constexpr else parameter.annotation_type
        for parameter in kernel.params
    }
    aligned = {(kernel.arg_names.index(table),): [["tt.divisibility", 16]] for table in TABLES}
    source = ASTSource(kernel, types | TABLES, {"UNIT": unit, "TILE": grid.tile}, aligned)
    return triton.compile(source, target=TARGETS[target], options={"num_warps": grid.warps, "num_stages": 1})


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


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Triton's cache empty at the begin, and removes it at the end."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", NVIDIA)
@pytest.mark.parametrize("grid", [GRID, GRID.to_host()], ids=["from the host", "to the host"])
def test_kernels_compile_for_nvidia(kernel: Any, unit: int, target: str, grid: Grid, tmp_path: Path) -> None:
    """Each unit of a thread is one load and one store, of 128 bits for 16 bytes; no local memory is used."""
    made = compiled(kernel, unit, target, grid)
    ptx, taken = made.asm["ptx"], resources(made.asm["cubin"], tmp_path)
    units = grid.tile // (grid.warps * 32)
    accesses = global_accesses(ptx)
    assert accesses["st"] == [unit * 8] * units
    assert accesses["ld"].count(unit * 8) >= units
    assert ".local" not in ptx
    assert (taken["STACK"], taken["LOCAL"], taken["SHARED"]) == (0, 0, 0)


def test_kernels_compile_for_amd(kernel: Any, unit: int) -> None:
    """The same for AMD, by the names of the instructions."""
    assembly = compiled(kernel, unit, "gfx942").asm["amdgcn"]
    taken = amd_resources(assembly)
    suffixes = {16: "dwordx4", 8: "dwordx2", 4: "dword", 2: "short", 1: "byte"}
    units = GRID.tile // (GRID.warps * 64)
    assert re.findall(r"\bglobal_store_(\w+)", assembly) == [suffixes[unit]] * units
    assert len(re.findall(rf"\bglobal_load_u?{suffixes[unit]}\b", assembly)) >= units
    assert not re.search(r"\b(scratch|buffer|flat)_(load|store)", assembly)
    assert (taken["private_segment_fixed_size"], taken["vgpr_spill_count"], taken["sgpr_spill_count"]) == (0, 0, 0)
