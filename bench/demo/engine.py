"""An engine of the demo, in its own process: completes a text with pagetier, then without, and compares the logits.

The demo starts it with a Task, reads its events from its stdout, and kills it after the report.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from llama_driver import Context, Logits, Model, Tokens
from messages import Event, Piece, Report, Step, Task
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache
from pagetier.client.engines.unsupported import UnsupportedError
from prompt import NEW_TOKENS, PAGE_TOKENS, prompt_of
from vocabulary import Vocabulary

WAIT_S = 10.0  # for the daemon, on a busy host
_WARMED_TOKENS = 32


class Run(msgspec.Struct, frozen=True, eq=False):
    """A prompt that was completed: its loaded tokens, the logits of each new token, and the seconds to the first."""

    loaded: int
    logits: list[Logits]
    first_token_s: float


class Engine:
    """A context for one sequence, with a prompt cache."""

    def __init__(self, context: Context, cache: PromptCache, vocabulary: Vocabulary) -> None:
        self._context, self._cache, self._vocabulary = context, cache, vocabulary

    def with_pagetier(self, prompt: Tokens) -> Run:
        """Completes a prompt of which pagetier may have a part, and sends the text of each new token."""
        return self._run(
            self._cache.prefill(prompt, timeout=WAIT_S), prompt, "read the text, with pagetier", self._send
        )

    def without(self, prompt: Tokens) -> Run:
        """Completes a prompt in an empty context, in the same batches."""
        self._context.clear()
        ends = [*range(0, len(prompt), self._cache.page_tokens), len(prompt)]
        batches = (range(start, end) for start, end in pairwise(ends))
        return self._run(batches, prompt, "read it again without pagetier", lambda token: None)

    def _run(self, batches: Iterator[range], prompt: Tokens, what: str, show: Callable[[int], None]) -> Run:
        send_event(Step(what, 0, len(prompt)))
        began = time.perf_counter()
        loaded, first_token_s, logits = -1, 0.0, np.empty(0, np.float32)
        for batch in batches:
            loaded = batch.start if loaded < 0 else loaded
            logits = self._context.decode(prompt[batch.start : batch.stop], batch.start)
            first_token_s = time.perf_counter() - began
            send_event(Step(what, batch.stop, len(prompt)))
        return Run(loaded, list(self._complete(logits, len(prompt), show)), first_token_s)

    def _complete(self, logits: Logits, position: int, show: Callable[[int], None]) -> Iterator[Logits]:
        """Yields the logits of each new token: always the likeliest is taken."""
        for at in range(position, position + NEW_TOKENS):
            yield logits
            token = int(logits.argmax())
            if self._vocabulary.ends(token):
                return
            show(token)
            logits = self._context.decode(np.array([token], np.int32), at)

    def _send(self, token: int) -> None:
        send_event(Piece(self._vocabulary.piece_of(token)))


def send_event(event: Event) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(event) + b"\n")
    sys.stdout.buffer.flush()


def equal(ours: list[Logits], theirs: list[Logits]) -> int:
    """Returns the number of new tokens whose logits are equal bit by bit."""
    return sum(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=False))


def warm_up(context: Context) -> None:
    """Computes a few tokens, since the first ones of a process read the weights from the file."""
    context.decode(np.full(_WARMED_TOKENS, 3, np.int32))
    context.clear()


def work(task: Task, client: Client, model: Model) -> Report:
    vocabulary = Vocabulary(model)
    prompt = vocabulary.tokens_of(prompt_of(task.engine))
    cells = len(prompt) + NEW_TOKENS + 2 * PAGE_TOKENS
    with Context(model, n_ctx=cells, n_batch=PAGE_TOKENS, n_ubatch=PAGE_TOKENS) as context:
        send_event(Step("read the weights, and make a prompt cache"))
        warm_up(context)
        client.wait_attached(WAIT_S)
        with PromptCache(
            context.pointer, library=model.lib, model_files=task.files, client=client, page_tokens=PAGE_TOKENS
        ) as cache:  # shorter pages than fill frames, for a short prompt
            engine = Engine(context, cache, vocabulary)
            ours, theirs = engine.with_pagetier(prompt), engine.without(prompt)
    return Report(
        model=Path(task.files[0]).stem,
        prompt_tokens=len(prompt),
        loaded_tokens=ours.loaded,
        new_tokens=len(theirs.logits),
        equal=equal(ours.logits, theirs.logits),
        first_token_s=ours.first_token_s,
        first_token_uncached_s=theirs.first_token_s,
    )


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    send_event(Step("load the model"))
    with (
        Client(task.socket, timeout=WAIT_S, name=f"demo-engine-{task.engine}") as client,
        Model(Path(task.files[0])) as model,
    ):
        send_event(work(task, client, model))
        sys.stdin.read()  # an engine waits for its next prompt, and this one is killed there


if __name__ == "__main__":
    try:
        main()
    except UnsupportedError as error:
        sys.exit(f"pagetier cannot cache this model: {error}")
