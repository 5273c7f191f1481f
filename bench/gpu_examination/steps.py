"""The steps of the GPU examination, the most valuable ones first."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCH = "bench"
BENCH_COMMAND = "from pagetier.client.cli.bench.command import main"
PYTEST = (
    *("-m", "pytest", "-m", "gpu", "-q", "-p", "gpu_examination.result_lines"),
    *("-W", "default::UserWarning"),  # torch and CUDA of another version may warn of things that are no failures
)
# Each file has a process of its own: an error that ends one process's use of the GPU leaves the other files alone.
PARALLEL = ("-p", "xdist.plugin", "-n", "4", "--dist", "loadfile", "-k", "not compute_sanitizer")
SANITIZER = "compute-sanitizer"
# Not calls that CUDA refuses: its own bindings ask the driver for functions that it does not have.
MEMORY_ERRORS = ("--tool", "memcheck", "--report-api-errors", "no")
# One launch of each kernel for each width of its accesses, and one copy through each path.
ONE_OF_EACH = (
    *("tests/kernels/test_triton_kernels.py", "tests/kernels/test_cuda_gpu.py"),
    *("-k", "(test_known_shapes and 16) or test_many_runs_fit_through_a_small_ring"),
)


@dataclass(frozen=True)
class Step:
    """One step of the examination.

    Attributes:
        name: The name in the results.
        seconds: The most that it may take. The limits of all steps together are 9 minutes.
        command: The command line, from the root of the tree. Lines of its output that are JSON objects are results.
        tool: A program without which the step is skipped.
        environment: Further environment variables.
    """

    name: str
    seconds: int
    command: tuple[str, ...]
    tool: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def gpu_steps(bundle: Path, site: Path) -> list[Step]:
    """Returns the steps on a machine with a GPU.

    Args:
        bundle: The folder that `make gpu-bundle` made.
        site: The folder into which missing packages are installed.
    """
    python = sys.executable
    benchmark = [(name, (python, f"{BENCH}/gpu_{name}.py", "--json")) for name in ("copy", "engine", "kernels")]
    copy, engine, kernels = (command for _, command in benchmark)
    sanitized = (SANITIZER, *MEMORY_ERRORS, "--error-exitcode", "86", python, *PYTEST, *ONE_OF_EACH)
    return [
        Step("machine", 15, (python, f"{BENCH}/gpu_examination/machine.py", str(bundle))),
        Step("packages", 30, (python, f"{BENCH}/gpu_examination/packages.py", str(bundle), str(site))),
        Step("core", 40, (python, "setup.py", "--quiet", "build_ext", "--inplace", "--force")),
        Step("tests", 120, (python, *PYTEST, *PARALLEL, *gpu_tests())),
        Step("copy", 75, copy),
        # Engines read these thresholds from now on, because XDG_CONFIG_HOME is a folder of the results.
        Step("calibrate", 40, (python, "-c", f"{BENCH_COMMAND}; main()", "calibrate", "--json")),
        Step("engine", 90, engine),
        # Without torch's own allocator each tensor is an allocation whose borders the tool checks.
        Step("sanitizer", 50, sanitized, SANITIZER, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        Step("process_death", 40, (python, f"{BENCH}/gpu_process_death.py", "--json")),
        Step("kernels", 40, kernels),
    ]


def rehearsal_steps(bundle: Path, site: Path) -> list[Step]:
    """Returns the same steps for a machine without a GPU: simulated device, interpreted kernels, a tiny model.

    The tests are collected and skipped, which proves that they can be imported there.
    """
    return [_rehearsed(step) for step in gpu_steps(bundle, site)]


def _rehearsed(step: Step) -> Step:
    if step.name in ("copy", "engine", "process_death", "kernels"):
        step = replace(step, command=(*step.command, "--rehearsal"))
    if step.name == "calibrate":
        step = replace(step, command=(sys.executable, f"{BENCH}/simulated_gpu.py", *step.command[3:]))
    if step.name == "tests":
        step = replace(step, command=tuple("1" if word == "4" else word for word in step.command))
    interpreted = {"TRITON_INTERPRET": "1"} if step.name in ("copy", "calibrate", "kernels") else {}
    return replace(step, seconds=4 * step.seconds, environment=step.environment | interpreted)


def gpu_tests() -> list[str]:
    """Returns the test files with tests that need a GPU."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "pytest.mark.gpu" in file.read_text()]
