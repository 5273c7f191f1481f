"""Compares vLLM alone, with its native offloading, and with pagetier: all run and get the same requests in turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from daemon_setup import Stage
from disk_setup import QuietScene, Scene, until
from serving.engine import LENGTH, Answer, Engine, Prompts
from serving.model import VOCABULARY, Recipe, llama

ALONE, NATIVE, OURS = "vllm", "native", "pagetier"
EVERYONE, CACHING = (ALONE, NATIVE, OURS), (NATIVE, OURS)
SIZES = {"hidden": 256, "layers": 4, "length": LENGTH}
HOST_BYTES = 1 << 30
NO_OPTIONS: Mapping[str, Any] = {}
FRAME_BYTES = 128 << 10  # a page: 32 tokens of 4 layers with 256 keys and 256 values of 2 bytes


class Contest:
    """The engines, and the daemon that one of them uses.

    `equal` counts the answers of the engines with a cache that agree with vLLM alone, and those that do not.
    """

    def __init__(self, engines: Mapping[str, Engine], scene: Scene) -> None:
        self.engines, self.scene = engines, scene
        self._numbers = random.Random(1)
        self._orders = random.Random(2)
        self._said: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.equal: dict[str, Counter[bool]] = {name: Counter() for name in CACHING}

    def prompt(self, tokens: int, begin: list[int] | None = None) -> list[int]:
        """Returns a new prompt that begins with the given tokens."""
        more = tokens - len(begin or [])
        return [*(begin or []), *(self._numbers.randrange(10, VOCABULARY) for _ in range(more))]

    def in_turn(self) -> list[tuple[str, Engine]]:
        """Returns all engines in a random order.

        If each call began with the next engine, the same engine could be the first in every run of a case.
        """
        return self._orders.sample(list(self.engines.items()), len(self.engines))

    def run(self, prompts: Prompts, names: Sequence[str], cached: int = 0, tokens: int = 1) -> dict[str, float]:
        """Returns the seconds of each engine.

        `cached`: tokens of each prompt that its connector has; vLLM alone has none.
        """
        answers = {name: engine.run(prompts, tokens) for name, engine in self.in_turn() if name in names}
        for name, answer in answers.items():
            require_cached(name, answer, cached if name != ALONE else 0)
        self._compare(prompts, answers)
        return {name: answer.seconds for name, answer in answers.items()}

    def _compare(self, prompts: Prompts, answers: dict[str, Answer]) -> None:
        """Compares the answers with those of vLLM alone to the same prompts; other prompts are skipped."""
        if ALONE in answers:
            self._said |= zip(map(tuple, prompts), answers[ALONE].tokens, strict=True)
        for name, answer in answers.items():
            if name != ALONE:
                pairs = zip(map(tuple, prompts), answer.tokens, strict=True)
                self.equal[name].update(self._said[prompt] == text for prompt, text in pairs if prompt in self._said)

    def forget(self) -> None:
        """Empties all engines' own prefix caches, once everything is stored."""
        for engine in self.engines.values():
            engine.run([[7]])
            engine.forget()

    def only_on_disk(self) -> None:
        """Removes pagetier's pages from memory and from the kernel's page cache."""
        self.scene.ask_saved()
        until("flushing the pages", self._flushed)
        self.scene.drop_cache()

    def _flushed(self) -> bool:
        with suppress(AssertionError):
            self.scene.flush("memory")
            return True
        return False


class MissedError(Exception):
    """A cache had fewer or more tokens than intended: such a round is invalid."""


def require_cached(name: str, answer: Answer, cached: int | Sequence[int]) -> None:
    """Raises MissedError unless each prompt had as many cached tokens as intended."""
    intended = (cached,) * len(answer.cached) if isinstance(cached, int) else tuple(cached)
    if answer.cached != intended:
        raise MissedError(f"{name}: {answer.cached} tokens cached instead of {cached}")


@contextmanager
def contest(folder: Path, recipe: Recipe = llama, options: Mapping[str, Any] = NO_OPTIONS) -> Iterator[Contest]:
    """Runs the engines until the context ends.

    Args:
        folder: An empty folder for all files.
        recipe: Makes the model.
        options: Further arguments of vLLM's LLM.
    """
    model = recipe(folder / "model", **SIZES)
    sizes = ("--arena-size", str(HOST_BYTES), "--disk-size", str(4 * HOST_BYTES))
    # A page fills a frame: with larger frames the arena has too few of them for the pages of a round.
    frames = ("--set", f"arena.frame_size={FRAME_BYTES}")
    # Pages written ahead of eviction would be written while the other engines compute.
    with QuietScene(folder, *sizes, *frames) as scene:
        scene.client().close()
        until("disk", scene.disk_open)
        engines: dict[str, Engine] = {}
        try:
            for name, transfer in {ALONE: None, NATIVE: native_transfer(), OURS: our_transfer(scene)}.items():
                engines[name] = Engine(name, model, transfer, options)
                engines[name].ready()
            yield Contest(engines, scene)
        finally:
            for engine in engines.values():
                engine.stop()


def native_transfer(host_bytes: int = HOST_BYTES) -> dict[str, Any]:
    """Returns the kv_transfer_config of native offloading into so much memory."""
    extra = {
        "spec_name": "HostOffloadingSpec",
        "spec_module_path": "serving.native",
        "cpu_bytes_to_use": host_bytes,
    }
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def our_transfer(stage: Stage) -> dict[str, Any]:
    """Returns the kv_transfer_config of pagetier with a daemon."""
    return {
        "kv_connector": "PagetierConnector",
        "kv_connector_module_path": "pagetier.client.engines.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": str(stage.socket), "disk_timeout": 30},
    }
