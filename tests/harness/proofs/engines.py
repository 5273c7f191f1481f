"""The proofs of tests with real engines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from proofs.proof import Proof
from proofs.shard import ROOT, Shard


def proof_of_engine(name: str, environment: str, tests: Sequence[str], inputs: Sequence[str], path: str = "") -> Proof:
    """Returns a proof of tests with an engine. A shard has the tests of a file, which share the engines they start.

    Args:
        name: Its name.
        environment: The environment of the engine, in .engines.
        tests: The files.
        inputs: The files and folders of the product that it depends on.
        path: A folder whose modules replace those of the environment.

    Returns:
        The proof.
    """
    environ = ("env", f"PYTHONPATH={ROOT / path}") if path else ()
    command = (*environ, f".engines/{environment}/bin/python", "-m", "pytest", "-q", "--shard=1/1")
    made = [Shard(Path(test).stem.removeprefix("test_"), (*command, test)) for test in tests]
    return Proof(name, tuple(inputs), partial(list, made), tuple(tests))


def _with_older_vllm() -> list[Shard]:
    """Returns the shards with versions of vLLM that the gate does not run. Those of 0.28 have no hybrid models."""
    return [
        *(_with_all("0.28", f"0.28 {name}", f"tests/engines/test_{name}.py") for name in _WITH_0_28),
        _with_all("0.28", "0.28 scheduler", *_SCHEDULED[:-6]),
        _with_all("0.30", "0.30 scheduler", *_scheduled_before_families()),
        *(_with_all(version, f"{version} answers {model}", *_answers(model)) for version, model in _OLDER_MODELS),
    ]


def _scheduled_before_families() -> list[str]:
    """Returns the tests with a scheduler that lacks some specifications of the families of models."""
    names = _tests_in(_RANDOM)
    others = [f"{_RANDOM}::{name}" for name in names if not name.endswith("_in_a_family")]
    return [*(name for name in _SCHEDULED[:-6] if name != _RANDOM), *others]


def _with_dynamo() -> list[Shard]:
    """Returns the shards in which Dynamo's indexer, in an environment of its own, is subscribed to both engines."""
    with_engines = [
        *(_with_all("0.32", f"vllm {Path(test).stem.removeprefix('test_')}", test) for test in _DYNAMO_VLLM),
        _with_all("sglang-0.5.23", "sglang", _DYNAMO_SGLANG),
    ]
    return [msgspec.structs.replace(shard, environment="dynamo") for shard in with_engines]


def _answers(model: str) -> list[str]:
    """Returns the tests that compare the answers of a model."""
    return [f"{_SAME_ANSWERS}::{name}[{model}]" for name in _tests_in(_SAME_ANSWERS)]


def _tests_in(file: str) -> list[str]:
    return re.findall(r"^def (test_\w+)\(", (ROOT / file).read_text(), re.MULTILINE)


def _with_all(environment: str, name: str, *tests: str) -> Shard:
    """Returns a shard of tests with all models, in an environment that the gate does not make."""
    python = f".engines/{environment}/bin/python"
    return Shard(name, ("env", "ALL=1", python, "-m", "pytest", "-q", "--shard=1/1", *tests), environment)


_ADAPTERS: Final = (
    *("client/engines/", "!client/engines/llama_cpp/", "!client/engines/transformers.py"),
    *("kernels/layout/", "client/registered_group.py"),
)
_REQUIREMENTS: Final = "tests/engines/requirements"
_VLLM: Final = (
    *(*_ADAPTERS, "!client/engines/sglang/"),
    *(f"{_REQUIREMENTS}/{name}.txt" for name in ("vllm", "vllm-0.32")),
)
_VLLM_ALONE: Final = (*_VLLM, "!client/engines/fleet_reads.py", "!client/engines/vllm/draft_model.py")
"""Without the modules that only several engines, or one with a draft model, put to use."""
_VLLM_SEVERAL: Final = (
    *_VLLM,
    *("!client/engines/events/", "!client/engines/request_hints.py"),
    *(f"!client/engines/vllm/{name}.py" for name in ("events", "finished_hints", "lora")),
)
"""Without those of LoRA, events and hints, which are used by tests of one engine."""
_SGLANG: Final = (*_ADAPTERS, "!client/engines/vllm/", f"{_REQUIREMENTS}/sglang.txt")

_SCHEDULED: Final = [
    f"tests/engines/test_{name}.py"
    for name in (
        "harness",
        "shared_prefixes",
        "random_requests",
        "scheduler_interface",
        "vllm_switch_flags",
        "idle_events",
        "divided_events",
        "gpu_pages",
        "fleet_waits",
        "cache_layouts",
        "model_families",
        "prefill_checkpoints",
        "sleep_mode",
    )
]


_SAME_ANSWERS: Final = "tests/engines/test_same_answers.py"
_WITH_0_28: Final = ("refused", "vllm_switch", "events")
_RANDOM: Final = "tests/engines/test_random_requests.py"
_OLDER_MODELS: Final = (
    ("0.28", "llama"),
    *(("0.30", model) for model in ("llama", "gemma3", "gpt_oss", "qwen3_next")),
)
_VLLM_OLDER: Final = (
    *(*_ADAPTERS, "!client/engines/sglang/"),
    "!client/engines/fleet_reads.py",
    *(f"{_REQUIREMENTS}/{name}.txt" for name in ("vllm", "vllm-0.28", "vllm-0.30")),
)
"""With all modules that import vLLM: its older versions may lack what they name."""

_DYNAMO: Final = (
    *(*_ADAPTERS, "!client/engines/fleet_reads.py", "!client/engines/request_hints.py"),
    *(f"!client/engines/vllm/{name}.py" for name in ("draft_model", "finished_hints", "lora")),
    *(f"{_REQUIREMENTS}/{name}.txt" for name in ("vllm", "vllm-0.32", "sglang", "dynamo")),
)
_DYNAMO_VLLM: Final = tuple(
    f"tests/engines/test_{name}.py" for name in ("dynamo", "dynamo_hybrid", "dynamo_idle", "dynamo_deaths")
)
_DYNAMO_SGLANG: Final = "tests/sglang/test_dynamo_sglang.py"

_SEVERAL: Final = [
    f"tests/engines/test_{name}.py"
    for name in (
        *("convoy", "disaggregated", "fleet", "fleet_network", "fleet_waits"),
        *("parallel_and_drafts", "server", "two_engines"),
    )
]
"""Tests of several engines, ranks or hosts, which take 40 % of the time of all tests with vLLM."""


def _files(folder: str) -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / folder).glob("test_*.py") if "dynamo" not in path.name
    )


PROOFS_OF_ENGINES: Final = (
    proof_of_engine(
        "engines-vllm", "0.32", [name for name in _files("tests/engines") if name not in _SEVERAL], _VLLM_ALONE
    ),
    proof_of_engine("engines-vllm-several", "0.32", _SEVERAL, _VLLM_SEVERAL),
    proof_of_engine("engines-scheduler", "0.32", _SCHEDULED, _VLLM, ".engines/0.33-source"),
    Proof(
        "engines-older",
        _VLLM_OLDER,
        _with_older_vllm,
        (_SAME_ANSWERS, *(f"tests/engines/test_{name}.py" for name in _WITH_0_28), *_SCHEDULED[:-6]),
    ),
    proof_of_engine("engines-sglang", "sglang-0.5.23", _files("tests/sglang"), _SGLANG),
    Proof("engines-dynamo", _DYNAMO, _with_dynamo, (*_DYNAMO_VLLM, _DYNAMO_SGLANG)),
)
"""All of them."""
