"""Runs a vLLM engine that receives commands as lines of JSON.

The first line has the engine's settings: {"model": ..., "socket": ... or null, "engine": {arguments of vllm.LLM},
"extra": {kv_connector_extra_config}, "transfer": {more of kv_transfer_config}}. Each further line is a command, and
each response is one line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import IO, Any

from tiny_model import IMAGE_SIDE


def main(commands: IO[str], answers: IO[str]) -> None:
    """Executes commands until the input ends."""
    engine = CommandedEngine(json.loads(commands.readline()))
    answers.write(json.dumps({"ready": True}) + "\n")
    for line in commands:
        command = json.loads(line)
        answers.write(json.dumps(getattr(engine, command.pop("do"))(**command)) + "\n")
    engine.close()


class CommandedEngine:
    """Implements the commands."""

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

    def generate(
        self,
        prompts: list[list[int]],
        tokens: int = 8,
        salt: str = "",
        said: dict[str, Any] | None = None,
        adapter: str = "",
        images: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Returns for each prompt the answer's token IDs, its exact logprobs, and the number of cached tokens.

        All prompts have the same images, which are random pixels from these seeds.
        """
        before = self._external()
        further: dict[str, Any] = {"cache_salt": salt} if salt else {}
        if images:
            further["multi_modal_data"] = {"image": [_image(seed) for seed in images]}
        asked = [{"prompt_token_ids": prompt, **further} for prompt in prompts]
        sampling = _greedy(tokens, 3)
        sampling.extra_args = said and {"kv_transfer_params": {"pagetier": said}}
        outputs = self._llm.generate(asked, sampling, use_tqdm=False, lora_request=_adapter(adapter))
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

    def abort(self, prompts: list[list[int]], steps: int) -> dict[str, Any]:
        """Submits the prompts, runs `steps` steps, and aborts all. Returns how many answers had begun."""
        engine = self._llm.llm_engine
        names = [f"aborted-{at}" for at in range(len(prompts))]
        for name, prompt in zip(names, prompts, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, _greedy(1000, None))
        begun = {output.request_id for _ in range(steps) for output in engine.step()}
        engine.abort_request(names)
        while engine.has_unfinished_requests():
            engine.step()
        return {"begun": len(begun)}

    def reset(self, connector: bool = False) -> dict[str, Any]:
        """Empties vLLM's own prefix cache."""
        return {"reset": self._llm.reset_prefix_cache(reset_connector=connector)}

    def metrics(self) -> dict[str, Any]:
        """Returns all counters."""
        return {one.name: one.value for one in self._llm.get_metrics() if hasattr(one, "value")}

    def close(self) -> None:
        """Shuts down like a user's program."""
        self._llm.llm_engine.engine_core.shutdown()

    def _external(self) -> int:
        return int(self.metrics().get("vllm:external_prefix_cache_hits", 0))


class NoDrafts:
    """Guesses no tokens, as a class of its own that vLLM loads (`custom_class`)."""

    def __init__(self, _: Any) -> None:
        pass

    def load_model(self, *_: Any, **__: Any) -> None:
        """Has no weights."""

    def propose(self, sampled: list[list[int]], *_: Any, **__: Any) -> list[list[int]]:
        """Returns no token for each request."""
        return [[] for _ in sampled]


def _adapter(folder: str) -> Any:
    """Returns a request for the adapter in this folder, which is always named alike."""
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, folder) if folder else None


def _image(seed: int) -> Any:
    from PIL import Image  # type: ignore[import-not-found]

    size = (IMAGE_SIDE, IMAGE_SIDE)
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * IMAGE_SIDE**2))


def _greedy(tokens: int, logprobs: int | None) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, logprobs=logprobs, detokenize=False, ignore_eos=True)


def _transfer(settings: dict[str, Any]) -> dict[str, Any] | None:
    if settings.get("socket") is None:
        return None
    installed = any(one.name == "pagetier" for one in entry_points(group="vllm.general_plugins"))
    return {
        "kv_connector": "PagetierConnector",
        "kv_role": "kv_both",
        # The tests count what is loaded; of tiny models computing may be faster.
        "kv_connector_extra_config": {"socket": settings["socket"], "load": "always", **settings.get("extra", {})},
        **({} if installed else {"kv_connector_module_path": "pagetier.client.engines.vllm"}),
        **settings.get("transfer", {}),
    }
