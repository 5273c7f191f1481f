"""Runs `pagetier-bench serve` with a real vLLM: prompts that return hit with pagetier, and the answers are the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tiny_model
from one_host import MODELS, PAGE_TOKENS
from vllm_engine import ENVIRONMENT

CHATS = 8
TOKENS = 1024
COMMAND = "from pagetier.client.cli.bench.command import main; main(prog_name='pagetier-bench')"


def test_returning_prompts_hit_with_pagetier_and_have_the_same_answers(tmp_path: Path) -> None:
    model = tiny_model.make("llama", MODELS)
    blocks = 2 * TOKENS // PAGE_TOKENS["llama"]  # less than the chats have, so that vLLM's own cache forgets them
    options = ["--rounds", "1", "--json", "--chats", str(CHATS), "--prompt-tokens", str(TOKENS)]
    options += ["--arena", "256MiB", "--frame-size", "32KiB"]
    vllm = ["--enforce-eager", "--dtype", "bfloat16", "--max-model-len", str(2 * TOKENS)]
    vllm += ["--num-gpu-blocks-override", str(blocks + 1)]
    command = [sys.executable, "-c", COMMAND, "serve", str(model), *options, "--", *vllm]
    environment = os.environ | ENVIRONMENT | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    hits = {
        row["system"]: row["result"]["value"] for row in report["rows"] if row["measure"] == "prompt tokens that hit"
    }
    returned = 100 * CHATS * (TOKENS * 3 // 4) / (CHATS * TOKENS * 7 // 4)
    assert hits["vLLM alone"] < returned <= hits["pagetier"], done.stderr
    assert report["different_answers"] == {"vLLM alone": 0, "pagetier": 0}
    assert report["evicted_pages"] == 0
    assert not list(tmp_path.glob("pagetier-bench-*"))
