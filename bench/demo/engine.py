"""An engine of the demo, in its own process: reads a prompt with pagetier, then without, and compares the logits.

The demo starts it with a Task and reads its events from its stdout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import torch
from transformers import DynamicCache

import model
from ipc import Event, Report, Step, Task
from pagetier.client import Client
from pagetier.client.engines.transformers import CachedPrompt, PromptCache, namespace_of
from prompt import PAGE_TOKENS, prompt_of

WAIT_S = 10.0  # for the daemon, on a busy host


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


def read(prompts: PromptCache, prompt: torch.Tensor, begin: Callable[[], CachedPrompt], what: str) -> Run:
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


def warm_up(prompts: PromptCache) -> None:
    """Computes a few chunks, since the first ones of a process are slow."""
    for _ in prompts.prefill(torch.zeros(2 * PAGE_TOKENS, dtype=torch.int64), DynamicCache()):
        pass


def equal_positions(run: Run, reference: Run) -> int:
    """Returns the number of computed positions whose logits are equal bit by bit."""
    pairs = zip(run.logits, reference.logits[run.cached.tokens :], strict=True)
    return sum(torch.equal(ours, theirs) for ours, theirs in pairs)


def work(task: Task, client: Client) -> Report:
    send_event(Step("build the model"))
    llama = model.build()
    prompts = PromptCache(client, llama, namespace_of(llama, PAGE_TOKENS, name=model.NAME))
    warm_up(prompts)
    client.wait_attached(WAIT_S)
    prompt = torch.tensor(list(prompt_of(task.engine)))
    run = read(prompts, prompt, lambda: prompts.load(prompt), "read the prompt, with pagetier")
    send_event(Step("store the new pages"))
    stored = prompts.store(prompt, run.cached.cache)
    reference = read(prompts, prompt, nothing, "read it again without pagetier")
    return Report(
        parameters=llama.num_parameters(),
        threads=torch.get_num_threads(),
        prompt_tokens=len(prompt),
        memory_tokens=run.cached.pages_from_memory * PAGE_TOKENS,
        disk_tokens=run.cached.pages_from_disk * PAGE_TOKENS,
        positions_equal=equal_positions(run, reference),
        pages_stored=stored.stored,
        page_bytes=prompts.page_bytes,
        first_token_s=run.seconds,
        first_token_uncached_s=reference.seconds,
    )


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    with Client(task.socket, timeout=WAIT_S, name=f"demo-engine-{task.engine}") as client:
        send_event(work(task, client))


if __name__ == "__main__":
    main()
