"""Reads prompts with the demo's Llama, with pagetier and without, and compares the logits."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import torch
from transformers import DynamicCache

from fleet_messages import Event
from long_text import PAGE_TOKENS
from messages import Step
from pagetier.client.engines.transformers import CachedPrompt, PrefillCache


class Run(msgspec.Struct, frozen=True, eq=False):
    """A prompt, computed up to its first new token: its cached part, the logits of the rest, and the seconds taken."""

    cached: CachedPrompt
    logits: torch.Tensor
    seconds: float


def send_event(event: Event) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def nothing() -> CachedPrompt:
    """Returns the start of a run without pagetier."""
    return CachedPrompt(0, DynamicCache())


def read(prompts: PrefillCache, prompt: torch.Tensor, begin: Callable[[], CachedPrompt], what: str) -> Run:
    send_event(Step(what, 0, len(prompt)))
    began = time.perf_counter()
    cached = begin()
    logits = torch.cat(list(reported(prompts.prefill(prompt, cached.cache, 0), cached.tokens, len(prompt), what)))
    int(logits[-1].argmax())  # the first new token
    return Run(cached, logits, time.perf_counter() - began)


def reported(chunks: Iterator[torch.Tensor], done: int, total: int, what: str) -> Iterator[torch.Tensor]:
    """Yields the logits of each chunk and reports the progress."""
    send_event(Step(what, done, total))
    for logits in chunks:
        done += len(logits)
        send_event(Step(what, done, total))
        yield logits


def warm_up(prompts: PrefillCache) -> None:
    """Computes a few chunks, since the first ones of a process are slow."""
    for _ in prompts.prefill(torch.zeros(2 * PAGE_TOKENS, dtype=torch.int64), DynamicCache()):
        pass


def equal_positions(run: Run, reference: Run) -> int:
    """Returns the number of computed positions whose logits are equal bit by bit."""
    pairs = zip(run.logits, reference.logits[run.cached.tokens :], strict=True)
    return sum(torch.equal(ours, theirs) for ours, theirs in pairs)
