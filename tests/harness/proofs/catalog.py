"""All proofs: what each of them runs, and the files that it depends on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache, partial
from typing import Final

from proofs.engines import PROOFS_OF_ENGINES
from proofs.proof import Proof
from proofs.shard import ROOT, Shard

_PYTHON: Final = ".venv/bin/python"
_STRESS: Final = "tests/shm/stress"
_FUZZ: Final = "tests/shm/fuzz"
_MODELS: Final = "tests/models/check_models.py"
_MUTANTS_OF_A_SHARD: Final = 8


def proof_of_tests(name: str, tests: Sequence[str], inputs: Sequence[str], shards: int, python: str = _PYTHON) -> Proof:
    """Returns a proof that consists of tests of pytest.

    Args:
        name: Its name.
        tests: The files and folders of its tests.
        inputs: The files and folders of the product that it depends on.
        shards: How many shards to make. A shard has every so many of the tests.
        python: The interpreter whose environment they need, from the root of the repository.

    Returns:
        The proof.
    """
    command = (python, "-m", "pytest", "-q", *tests)
    made = [Shard(f"{at + 1}/{shards}", (*command, f"--shard={at + 1}/{shards}")) for at in range(shards)]
    return Proof(name, tuple(inputs), partial(list, made), tuple(tests))


def _models() -> list[Shard]:
    listed = _said(_PYTHON, _MODELS, "--list")
    return [Shard(variant, (_PYTHON, _MODELS, variant)) for variant in listed]


def _drivers(folder: str, prefix: str) -> list[Shard]:
    """Returns a shard for each target. Those of `messages` build the same packages, and so they wait for each other."""
    alone = ("flock", "build/proofs/messages.lock")
    return [
        Shard(name, (*(alone if "messages" in name else ()), "make", "-C", folder, name))
        for name in _targets(folder)
        if name.startswith(prefix)
    ]


def _mutants(folder: str) -> list[Shard]:
    """Returns shards of some mutants each, all of one driver."""
    of_driver: dict[str, list[str]] = {}
    for name in _targets(folder):
        if name.startswith("refute/"):
            of_driver.setdefault(name.split("/")[1], []).append(name)
    return [
        Shard(
            f"{driver} {at // _MUTANTS_OF_A_SHARD + 1}",
            ("make", "-k", "-C", folder, *names[at : at + _MUTANTS_OF_A_SHARD]),
        )
        for driver, names in of_driver.items()
        for at in range(0, len(names), _MUTANTS_OF_A_SHARD)
    ]


def _targets(folder: str) -> list[str]:
    return [line for line in _said("make", "-s", "-C", folder, "targets") if re.match(r"^\w+/", line)]


@cache
def _said(*command: str) -> list[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


_CLIENT: Final = ("client/", "!client/cli/", "!client/engines/")
_INDEX: Final = ("daemon/index/", "daemon/server/", "daemon/main.py", "daemon/lifecycle.py")
_DAEMON: Final = (
    *(*_INDEX, "daemon/common/", "daemon/host/", "daemon/status/", "daemon/stats/frame_advice.py"),
    *(f"daemon/{name}.py" for name in ("memory_release", "stop_signals", "upkeep")),
)
_DISK: Final = ("daemon/disk/", "daemon/reads/", "daemon/status/", "daemon/workers/", "tiers/", "!tiers/fleet/")
_STORES: Final = (
    "tiers/disk/",
    "tiers/lmdb/",
    "tiers/frame_files/",
    "tiers/page_checksum.py",
    "tiers/base.py",
    "tiers/capacity.py",
)
_FUZZED: Final = (
    *("shm/", f"{_STRESS}/", f"{_FUZZ}/", *_INDEX),
    *("daemon/common/log_throttle.py", "daemon/config/schema.py"),
)
PROOFS: Final = (
    Proof("models", ("tests/models/",), _models),
    Proof("stress", ("shm/core/", f"{_STRESS}/"), partial(_drivers, _STRESS, "run/")),
    Proof("stress-mutants", ("shm/core/", f"{_STRESS}/"), partial(_mutants, _STRESS)),
    Proof("fuzzers", _FUZZED, partial(_drivers, _FUZZ, "fuzz/")),
    Proof("fuzzers-mutants", _FUZZED, partial(_drivers, _FUZZ, "refute/")),
    proof_of_tests(
        "failpoints",
        ["tests/crash/injection/test_failpoints.py"],
        [
            *(*_CLIENT, "shm/", *_DAEMON, "tiers/"),
            *(f"daemon/{room}/" for room in ("disk", "fleet", "reads", "workers")),
            f"{_STRESS}/mutate.py",
        ],
        16,
    ),
    proof_of_tests(
        "disk-calls",
        [f"tests/crash/injection/test_{name}.py" for name in ("disk_calls", "kernel", "lost")],
        _DISK,
        6,
    ),
    proof_of_tests("deaths", ["tests/crash/deaths"], [*_CLIENT, "shm/", *_DAEMON, *_DISK], 6),
    proof_of_tests("power-loss", ["tests/crash/power_loss"], _STORES, 6),
    proof_of_tests("disk-corruption", ["tests/crash/disk_corruption"], _DISK, 8),
    proof_of_tests("segment-corruption", ["tests/crash/segment_corruption"], [*_CLIENT, "shm/", *_DAEMON], 1),
    proof_of_tests("adversarial", ["tests/crash/adversarial"], ["shm/", *_DAEMON], 4),
    proof_of_tests(
        "host-events", ["tests/crash/host_events"], [*_DISK, "daemon/common/", "daemon/host/", "daemon/main.py"], 4
    ),
    proof_of_tests(
        "random-deaths", ["tests/crash/simulator/test_simulator.py"], [*_CLIENT, "shm/", *_DAEMON, *_DISK], 12
    ),
    proof_of_tests(
        "page",
        ["tests/daemon/http/test_page_in_chromium.py"],
        ["daemon/http/", "daemon/stats/", "daemon/status/", "shm/units.py"],
        2,
    ),
    proof_of_tests("compiled-kernels", ["tests/kernels/test_compiled_kernels.py"], ["kernels/gpu/"], 1),
    proof_of_tests(
        "gpu-rehearsal",
        [f"tests/bench/test_gpu_{name}.py" for name in ("rehearsal", "examination")],
        [
            *("kernels/", "client/async_copy/", "client/cli/calibrate/", "bench/gpu_examination/"),
            *(f"bench/gpu_{name}.py" for name in ("copy", "engine", "kernels", "process_death")),
        ],
        2,
    ),
    proof_of_tests(
        "benchmarks",
        [f"tests/bench/test_{name}.py" for name in ("compare", "behind_gpu", "curve")],
        [
            *("bench/", "!bench/gpu_examination/", "!bench/results/", "!bench/race/", "client/cli/replay/"),
            *("client/cli/daemon_probe.py", "client/cli/termination.py"),
        ],
        4,
    ),
    *PROOFS_OF_ENGINES,
)
"""All proofs, the quickest to break first."""


def tests_of_proofs() -> frozenset[str]:
    """Returns the files and folders of tests that `make test` leaves to the proofs."""
    return frozenset(name for proof in PROOFS for name in proof.tests)
