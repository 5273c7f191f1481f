"""Everything that needs a GPU in one command, in at most 9 minutes on an H100: `make gpu`.

The machine needs Python 3.12, torch with Triton, and a C compiler. What else is missing comes from the folder that
`make gpu-bundle` made; nothing is downloaded. Each result is written at once. This program and those
that it imports use the standard library only.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

from gpu_examination.machine import output
from gpu_examination.runner import ResultsFile, run, summary
from gpu_examination.steps import ROOT, Step, gpu_steps, rehearsal_steps

REHEARSED_MINUTES = 36  # a machine without a GPU may be slow


def main() -> int:
    """Runs the steps and returns 1 if one of them failed or was stopped. Missed goals are no failures."""
    options = _options()
    device = "rehearsal" if options.rehearsal else _gpu_name()
    if not device:
        print("there is no GPU here; `make gpu-rehearsal` tries the steps without one", file=sys.stderr)
        return 1
    now = datetime.now(UTC)
    steps = _steps(options)
    results = ResultsFile(options.results / _folder_name(device) / f"{now:%Y-%m-%dT%H%M%S}.jsonl")
    results.add("examination", {"device": device, "began": now.isoformat(timespec="seconds"), "steps": len(steps)})
    shutil.rmtree(options.work, ignore_errors=True)
    minutes = REHEARSED_MINUTES if options.rehearsal else options.minutes
    run(steps, results, _environment(options.work), 60 * minutes)
    print(*summary(results.lines), sep="\n")
    return 1 if any(line.get("outcome", "").startswith(("failed with", "stopped")) for line in results.lines) else 0


def _steps(options: argparse.Namespace) -> list[Step]:
    steps = (rehearsal_steps if options.rehearsal else gpu_steps)(options.bundle.resolve(), _site(options.work))
    return [step for step in steps if not options.step or step.name in options.step]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="gpu_examination")
    parser.add_argument("--rehearsal", action="store_true", help="without a GPU, as far as that is possible")
    parser.add_argument("--bundle", type=Path, default=ROOT / "build/gpu-bundle", help="the wheels")
    parser.add_argument("--results", type=Path, default=ROOT / "bench/results", help="gets a folder for the device")
    parser.add_argument("--work", type=Path, default=ROOT / "build/gpu", help="a folder that is emptied first")
    parser.add_argument("--minutes", type=float, default=9, help="after which no step runs any more")
    parser.add_argument("--step", action="append", metavar="NAME", help="only this step; may be repeated")
    return parser.parse_args()


def _gpu_name() -> str:
    """Returns the name of the first GPU, or an empty string."""
    ask_torch = (sys.executable, "-c", "import torch; print(torch.cuda.get_device_name())")
    names = (output(*command) for command in (("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"), ask_torch))
    return next((name for name in names if name and not name.startswith("unknown")), "")


def _folder_name(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def _site(work: Path) -> Path:
    return work.resolve() / "site"


def _environment(work: Path) -> dict[str, str]:
    """Returns the environment of all steps: packages of the tree, and settings of copies that only the steps use."""
    folders = [_site(work), *(ROOT / name for name in ("src", "bench", "tests/harness"))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PAGETIER_", "PYTEST_"))}
    return environment | {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONUNBUFFERED": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # plugins of the machine may fail or change the tests
        "XDG_CONFIG_HOME": str(work.resolve() / "config"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is deterministic with it, also on several streams
    }


if __name__ == "__main__":
    sys.exit(main())
