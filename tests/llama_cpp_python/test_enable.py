"""Tests enable() with llama-cpp-python itself: tokens and logits equal those of a Llama without pagetier."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache, enable
from pagetier.client.engines.unsupported import UnsupportedError
from random_gguf import VOCABULARY, write_lora
from real_llama import NEW, PAGE, WRITERS, RealLlama, answer_in_process, write_worded
from running_daemon import RunningDaemon

Models = Callable[[str], Path]
TEXT = " ".join(["What does a page have, and who may read it?"] * 5)
ANSWERS: dict[str, Callable[[RealLlama], str]] = {
    "completion": lambda llama: completion_of(llama(TEXT, max_tokens=NEW, temperature=0.0)),
    "stream": lambda llama: "".join(
        completion_of(part) for part in llama(TEXT, max_tokens=NEW, temperature=0.0, stream=True)
    ),
    "chat": lambda llama: llama.create_chat_completion(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXT}], max_tokens=NEW, temperature=0.0
    )["choices"][0]["message"]["content"],
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    """Runs a daemon, which evicts nothing that a test stores."""
    with RunningDaemon("64MiB", "64KiB") as running:
        yield running


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    """Yields a client of the daemon."""
    with daemon.client() as attached:
        yield attached


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Returns a function that writes a model."""
    return partial(write_worded, folder=tmp_path_factory.mktemp("models"))


@contextmanager
def cached(model: Path, client: Client, **params: Any) -> Iterator[tuple[RealLlama, PromptCache]]:
    with closing(RealLlama(model, **params)) as llama, enable(llama, client=client) as cache:
        yield llama, cache


def completion_of(answer: Any) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def prompt_of(tokens: int, seed: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCABULARY, tokens)]


def expected(model: Path, prompt: list[int], **params: Any) -> tuple[list[int], str]:
    with closing(RealLlama(model, **params)) as llama:
        return llama.complete(prompt), llama.digest()


@pytest.mark.parametrize("kind", WRITERS)
def test_another_llama_loads_the_prompt(models: Models, client: Client, kind: str) -> None:
    model, prompt = models(kind), prompt_of(3 * PAGE + 5, seed=500)
    answer = expected(model, prompt)
    for computed in (3 * PAGE + 5, 5):
        with cached(model, client) as (llama, _):
            assert (llama.complete(prompt), llama.digest()) == answer
            assert llama.computed == computed + NEW - 1


@pytest.mark.parametrize("kind", ["llama", "jamba"])
def test_a_conversation_continues_in_another_llama(models: Models, client: Client, kind: str) -> None:
    model, prompt = models(kind), prompt_of(2 * PAGE + 5, seed=501)
    with cached(model, client) as (llama, _):
        longer = prompt + llama.complete(prompt, PAGE) + prompt_of(20, seed=502)
        answer = llama.complete(longer), llama.digest()
    with cached(model, client) as (llama, _):
        assert (llama.complete(longer), llama.digest()) == answer
        assert llama.computed == len(longer) - 3 * PAGE + NEW - 1


@pytest.mark.parametrize("kind", ["llama", "jamba"])
def test_the_same_prompt_again(models: Models, client: Client, kind: str) -> None:
    """A Llama computes the last token again if it can cut its state, and all of them otherwise."""
    model, prompt = models(kind), prompt_of(3 * PAGE + 5, seed=503)
    answer = expected(model, prompt)
    with cached(model, client) as (llama, _):
        for computed in (3 * PAGE + 5, 1 if kind == "llama" else 5):
            before = llama.computed
            assert (llama.complete(prompt), llama.digest()) == answer
            assert llama.computed - before == computed + NEW - 1


@pytest.mark.parametrize("way", ANSWERS)
def test_texts_are_equal(models: Models, client: Client, way: str) -> None:
    model = models("llama")
    with closing(RealLlama(model)) as llama:
        answer, computed = (ANSWERS[way](llama), llama.digest()), llama.computed
    assert computed > len(TEXT) and answer[0]
    for most in (computed, PAGE + NEW):
        with cached(model, client) as (llama, _):
            assert (ANSWERS[way](llama), llama.digest()) == answer
            assert llama.computed <= most


def test_a_saved_state_replaces_what_was_loaded(models: Models, client: Client) -> None:
    """It has the state of all sequences, also of pagetier's own."""
    model, prompt, other = models("llama"), prompt_of(2 * PAGE + 5, seed=504), prompt_of(3 * PAGE, seed=505)
    answers = expected(model, prompt), expected(model, other)
    with cached(model, client) as (llama, _):
        llama.complete(prompt)
        state = llama.save_state()
        assert (llama.complete(other), llama.digest()) == answers[1]
        llama.load_state(state)
        assert (llama.complete(prompt), llama.digest()) == answers[0]
    for tokens, answer in zip((prompt, other), answers, strict=True):
        with cached(model, client) as (llama, _):
            assert (llama.complete(tokens), llama.digest()) == answer


def test_an_adapter_stays_on_the_new_context(models: Models, client: Client, tmp_path: Path) -> None:
    model, prompt = models("llama"), prompt_of(2 * PAGE + 1, seed=506)
    adapter = str(write_lora(tmp_path / "lora.gguf"))
    answers = [(expected(model, prompt, lora_path=path), path) for path in (adapter, None)]
    assert answers[0][0] != answers[1][0]
    for computed in (len(prompt), 1):
        for answer, path in answers:
            with cached(model, client, lora_path=path) as (llama, _):
                assert (llama.complete(prompt), llama.digest()) == answer
                assert llama.computed == computed + NEW - 1


def test_a_closed_cache_leaves_a_llama_as_it_was(models: Models, client: Client) -> None:
    model, prompt = models("llama"), prompt_of(2 * PAGE + 1, seed=507)
    answer = expected(model, prompt)
    with cached(model, client) as (llama, cache):
        for _ in range(2):
            llama.reset()
            assert (llama.complete(prompt), llama.digest()) == answer
            cache.close()
        assert llama.computed == 2 * (len(prompt) + NEW - 1)


def test_a_llama_is_freed_with_its_last_reference(models: Models, client: Client) -> None:
    """A program that swaps models has room for one."""
    llama = RealLlama(models("llama"))
    gc.collect()
    gc.disable()
    try:
        with enable(llama, client=client):
            llama.complete(prompt_of(PAGE + 1, seed=508))
            freed = weakref.ref(llama)
            del llama
            assert freed() is None
    finally:
        gc.enable()


def test_a_llama_with_all_logits_is_rejected(models: Models, client: Client) -> None:
    llama = RealLlama(models("llama"), logits_all=True)
    with closing(llama), pytest.raises(UnsupportedError, match="without logits_all"):
        enable(llama, client=client)


def test_processes_share_a_prompt(models: Models, daemon: RunningDaemon) -> None:
    model, prompt = models("llama"), prompt_of(3 * PAGE + 5, seed=509)
    answer = expected(model, prompt)
    for computed in (3 * PAGE + 5, 5):
        other = answer_in_process(model, daemon.socket, prompt)
        assert (other.tokens, other.digest) == answer
        assert other.computed == computed + NEW - 1
