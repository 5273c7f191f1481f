"""A host of llama.cpp with a prompt cache: in this process, or as a process that a test can kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from eventually import PATIENCE_S
from llama_driver import Context, Logits, Model, Tokens
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache

VOCABULARY: Final = 512
_HARNESS: Final = str(Path(__file__).parent)


def prompt_of(tokens: int, seed: int = 1) -> Tokens:
    """Returns a prompt of random tokens."""
    return np.random.default_rng(seed).integers(3, VOCABULARY, tokens).astype(np.int32)


class Answer(msgspec.Struct, frozen=True):
    """What a host computed for a prompt.

    Attributes:
        loaded: The tokens that came from the cache.
        digest: A digest of the logits of the last token.
    """

    loaded: int
    digest: str


class LlamaHost:
    """A context with a prompt cache.

    Args:
        model: The model.
        client: The client.
        users: The sequences of the host.
        **params: Parameters of Context.
    """

    def __init__(self, model: Model, client: Client, users: int = 1, **params: Any) -> None:
        self.context = Context(model, users=users, **params)
        self.cache = PromptCache(self.context.pointer, library=model.lib, model_files=[model.path], client=client)

    def run(self, tokens: Tokens, seq: int = 0) -> tuple[int, Logits]:
        """Computes a prompt with the cache, and returns the tokens that were loaded and the last logits."""
        loaded, logits = -1, np.empty(0, np.float32)
        for batch in self.cache.prefill(tokens, seq, timeout=PATIENCE_S):
            loaded = batch.start if loaded < 0 else loaded
            logits = self.context.decode(tokens[batch.start : batch.stop], batch.start, seq)
        return loaded, logits

    def answer(self, tokens: Tokens) -> Answer:
        """Computes a prompt with the cache, and returns what other processes can compare."""
        loaded, logits = self.run(tokens)
        return Answer(loaded, digest_of(logits))

    def close(self) -> None:
        """Closes the cache and the context."""
        self.cache.close()
        self.context.close()


@contextmanager
def llama_host(model: Model, client: Client, users: int = 1, **params: Any) -> Iterator[LlamaHost]:
    """Yields a host, and closes it."""
    host = LlamaHost(model, client, users, **params)
    try:
        yield host
    finally:
        host.close()


def uncached(model: Model, tokens: Tokens, **params: Any) -> Logits:
    """Returns the last logits of a prompt in a context without a cache, whose batches are as long as the host's."""
    with Context(model, **params) as context:
        step = int(params.get("n_ubatch", 64))
        batches = range(0, len(tokens), step)
        return [context.decode(tokens[start : start + step], start) for start in batches][-1]


def digest_of(logits: Logits) -> str:
    """Returns a digest of logits, equal only if all bits are."""
    return sha256(logits.tobytes()).hexdigest()


def answer_in_process(model: Path, socket: Path, tokens: Tokens, **params: Any) -> Answer:
    """Runs a prompt in a process of its own."""
    with llama_process(model, socket, **params) as process:
        return ask(process, tokens)


@contextmanager
def llama_process(model: Path, socket: Path, **params: Any) -> Iterator[subprocess.Popen[str]]:
    """Yields a host in a process of its own, and kills it at the end."""
    command = [sys.executable, "-m", "llama_host", str(model), str(socket), json.dumps(params)]
    environ = os.environ | {"PYTHONPATH": _HARNESS}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], tokens: Tokens) -> Answer:
    """Runs a prompt in the process of a host."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(tokens.tolist()) + "\n")
    process.stdin.flush()
    return msgspec.json.decode(process.stdout.readline(), type=Answer)


def _serve(path: Path, socket: Path, params: dict[str, Any]) -> None:
    """Answers a prompt for each line of the input."""
    with Client(socket) as client, Model(path) as model:
        assert client.wait_attached(PATIENCE_S)
        with llama_host(model, client, **params) as host:
            for line in sys.stdin:
                answer = host.answer(np.array(json.loads(line), np.int32))
                sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
