"""A vLLM engine in a process of its own, told what to do by lines of JSON on its standard input.

The first line is the engine's settings: {"model": ..., "socket": ... or null, "engine": {arguments of vllm.LLM},
"extra": {kv_connector_extra_config}}. Each further line is a command; each answer is one line on the descriptor that
the environment names, as the engine itself writes to the standard output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Until the input ends."""
    answers = os.fdopen(int(os.environ["ENGINE_ANSWERS"]), "w", buffering=1)
    engine = Engine(json.loads(sys.stdin.readline()))
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in sys.stdin:
        command = json.loads(line)
        answers.write(json.dumps(getattr(engine, command.pop("do"))(**command)) + "\n")
    engine.close()


class Engine:
    """What the commands do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(
            **{
                "model": settings["model"],
                "skip_tokenizer_init": True,
                "enforce_eager": True,
                "dtype": "bfloat16",
                "disable_log_stats": False,
                "seed": 0,
                "kv_transfer_config": _transfer(settings),
                **settings.get("engine", {}),
            }
        )

    def generate(self, prompts: list[list[int]], tokens: int = 8) -> dict[str, Any]:
        """Each prompt's answer: token ids and logprobs, exact, and how many of its tokens were cached."""
        from vllm import SamplingParams

        before = self._external()
        sampling = SamplingParams(temperature=0, max_tokens=tokens, logprobs=3, detokenize=False, ignore_eos=True)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)
        answers = [
            {
                "tokens": list(output.outputs[0].token_ids),
                "logprobs": [
                    {str(token): one.logprob.hex() for token, one in step.items()}
                    for step in output.outputs[0].logprobs
                ],
                "cached": output.num_cached_tokens,
            }
            for output in outputs
        ]
        return {"answers": answers, "external": self._external() - before}

    def reset(self, connector: bool = False) -> dict[str, Any]:
        """Forgets vLLM's own prefix cache."""
        return {"reset": self._llm.reset_prefix_cache(reset_connector=connector)}

    def metrics(self) -> dict[str, Any]:
        """All counters."""
        return {one.name: one.value for one in self._llm.get_metrics() if hasattr(one, "value")}

    def close(self) -> None:
        """As a user's program ends."""
        self._llm.llm_engine.engine_core.shutdown()

    def _external(self) -> int:
        return int(self.metrics().get("vllm:external_prefix_cache_hits", 0))


def _transfer(settings: dict[str, Any]) -> dict[str, Any] | None:
    if settings.get("socket") is None:
        return None
    return {
        "kv_connector": "PagetierConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": settings["socket"], **settings.get("extra", {})},
        **settings.get("transfer", {}),
    }


if __name__ == "__main__":
    main()
