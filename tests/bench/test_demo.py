"""`make demo` with models that a test can afford. Its own model takes a minute, and is tried by people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from random_gguf import write_gemma3, write_llama

ROOT = Path(__file__).parents[2]


def run_demo(model: Path) -> subprocess.CompletedProcess[str]:
    """Runs the demo with a model, as `MODEL=... make demo` does."""
    environ = os.environ | {"MODEL": str(model), "PYTHONPATH": str(ROOT / "tests/harness")}
    return subprocess.run(
        [sys.executable, "bench/demo"], check=False, cwd=ROOT, env=environ, capture_output=True, text=True
    )


def test_every_engine_after_the_first_one_loads_the_prompt(tmp_path: Path) -> None:
    done = run_demo(write_gemma3(tmp_path / "model.gguf"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All logits are equal, bit by bit." in done.stdout
    assert done.stdout.count("logits equal at 40 of 40 new tokens") == 4


@pytest.mark.parametrize(("content", "message"), [(None, "there is no model file"), (b"GGML", "is no GGUF file")])
def test_a_file_without_a_model_is_named(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    done = run_demo(path)
    assert done.returncode == 1
    assert message in done.stdout
    assert str(path) in done.stdout


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_llama(tmp_path / "model-00001-of-00002.gguf")
    done = run_demo(tmp_path / "model-00001-of-00002.gguf")
    assert done.returncode == 1
    assert "model-00002-of-00002.gguf" in done.stdout
