"""Each variant of the kernels compiles, without a GPU, for each supported GPU, and to the intended memory accesses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from compiled_kernels import TARGETS, amd_resources, compiled, global_accesses, resources
from pagetier.kernels.gpu import triton_kernels
from pagetier.kernels.gpu.launch import GRID

UNITS = [16, 8, 4, 2, 1]
NVIDIA = [name for name in TARGETS if name.startswith("sm_")]
PAIR = {"gather": triton_kernels.gather, "scatter": triton_kernels.scatter}

# Triton tells everybody of a default of its own that will change; there is nothing here that it would change.
pytestmark = [
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION:UserWarning"),
    pytest.mark.parametrize("kernel", PAIR.values(), ids=PAIR),
    pytest.mark.parametrize("unit", UNITS),
]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes Triton's cache empty at the begin, and removes it at the end."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("target", NVIDIA)
def test_kernels_compile_for_nvidia(kernel: Any, unit: int, target: str, tmp_path: Path) -> None:
    """Each unit of a thread is one load and one store, of 128 bits for 16 bytes; no local memory is used."""
    made = compiled(kernel, unit, target)
    ptx, taken = made.asm["ptx"], resources(made.asm["cubin"], tmp_path)
    units = GRID.tile // (GRID.warps * 32)
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
