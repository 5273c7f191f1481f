"""Tests the adapter of llama.cpp with a real daemon: a cached run has exactly the logits of an uncached one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from llama_driver import Context, Model
from llama_host import Answer, LlamaHost, answer_in_process, digest_of, llama_host, prompt_of, uncached
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache
from random_gguf import write_llama
from running_daemon import RunningDaemon

pytest_plugins = ("llama_model",)
ARENA = "64MiB"
PAGE = 64


@pytest.fixture
def host(model: Model, client: Client) -> Iterator[LlamaHost]:
    with llama_host(model, client) as running:
        yield running


@pytest.mark.parametrize("tokens", [5 * PAGE - 1, 5 * PAGE, 5 * PAGE + 1, 6 * PAGE + 7])
def test_a_cached_prompt_gives_exactly_the_logits_of_an_uncached_one(model: Model, client: Client, tokens: int) -> None:
    prompt = prompt_of(tokens, seed=tokens)
    expected = uncached(model, prompt)
    for loaded in (0, (tokens - 1) // PAGE * PAGE):
        with llama_host(model, client) as host:
            assert_equal(host.run(prompt), (loaded, expected))
            assert host.context.state().nbytes > tokens


def assert_equal(got: tuple[int, Any], wanted: tuple[int, Any]) -> None:
    assert got[0] == wanted[0]
    assert np.array_equal(got[1], wanted[1])


def test_hits_on_hits(model: Model, client: Client) -> None:
    """Pages that were computed after a hit are loaded with those before."""
    prompt = prompt_of(7 * PAGE + 9, seed=2)
    for pages in (2, 3, 6, 7):
        beginning = prompt[: pages * PAGE + 9]
        expected = uncached(model, beginning)
        with llama_host(model, client) as host:
            loaded, logits = host.run(beginning)
            assert loaded == {2: 0, 3: 2, 6: 3, 7: 6}[pages] * PAGE
            assert np.array_equal(logits, expected)


def test_a_prompt_with_another_ending_loads_the_common_pages(model: Model, host: LlamaHost) -> None:
    beginning = prompt_of(3 * PAGE + 5, seed=3)
    host.run(np.concatenate([beginning, prompt_of(2 * PAGE, seed=4)]))
    prompt = np.concatenate([beginning, prompt_of(PAGE, seed=5)])
    assert_equal(host.run(prompt), (3 * PAGE, uncached(model, prompt)))


def test_the_state_after_a_load_is_the_state_of_a_run_without_a_cache(model: Model, client: Client) -> None:
    prompt = prompt_of(4 * PAGE + 1, seed=6)
    with Context(model) as context:
        context.decode(prompt)
        expected = context.state()
    for _ in range(2):
        with llama_host(model, client) as host:
            host.run(prompt)
            assert np.array_equal(host.context.state(), expected)


def test_a_changed_page_changes_the_logits(model: Model, client: Client) -> None:
    """The comparisons in this file depend on this."""
    prompt = prompt_of(2 * PAGE, seed=7)
    with llama_host(model, client) as host:
        _, expected = host.run(prompt)
        state = host.context.state()
        state[-1000] ^= 4
        host.context.restore(state)
        host.context.remove(0, len(prompt) - 1)
        assert not np.array_equal(host.context.decode(prompt[-1:], len(prompt) - 1), expected)


def test_another_process_loads_what_a_killed_one_stored(model: Model, daemon: RunningDaemon) -> None:
    prompt = prompt_of(5 * PAGE + 3, seed=8)
    expected = digest_of(uncached(model, prompt))
    assert answer_in_process(model.path, daemon.socket, prompt) == Answer(0, expected)
    assert answer_in_process(model.path, daemon.socket, prompt) == Answer(5 * PAGE, expected)


def test_without_a_daemon_everything_is_computed(model: Model) -> None:
    prompt = prompt_of(3 * PAGE, seed=9)
    with Client("/nowhere/pagetier.sock") as client, llama_host(model, client) as host:
        for _ in range(2):
            assert_equal(host.run(prompt), (0, uncached(model, prompt)))
        assert host.cache.store(prompt) == 0


@pytest.mark.parametrize("tokens", [0, 1, PAGE - 1])
def test_a_prompt_without_a_full_page_is_not_stored(host: LlamaHost, tokens: int) -> None:
    prompt = prompt_of(tokens, seed=10)
    for _ in range(2):
        assert host.cache.load(prompt) == 0
        if tokens:
            host.context.decode(prompt)
        assert host.cache.store() == 0


def test_generated_tokens_are_stored_with_the_prompt(model: Model, client: Client) -> None:
    tokens = prompt_of(PAGE + 30, seed=11)
    with llama_host(model, client) as host:
        _, logits = host.run(tokens)
        for _ in range(PAGE):
            tokens = np.append(tokens, logits.argmax()).astype(np.int32)
            logits = host.context.decode(tokens[-1:], len(tokens) - 1)
        assert host.cache.store(tokens) == 1
    with llama_host(model, client) as host:
        assert host.run(tokens)[0] == 2 * PAGE


def test_two_contexts_of_one_model(model: Model, client: Client) -> None:
    prompt = prompt_of(4 * PAGE, seed=12)
    expected = uncached(model, prompt)
    with llama_host(model, client) as one, llama_host(model, client) as other:
        assert_equal(one.run(prompt), (0, expected))
        assert_equal(other.run(prompt), (3 * PAGE, expected))


def test_a_model_swap_in_one_process(model: Model, client: Client, tmp_path: Path) -> None:
    """The models differ by their weights only."""
    prompt = prompt_of(3 * PAGE + 1, seed=13)
    with Model(write_llama(tmp_path / "llama.gguf", seed=2)) as other:
        for which, loaded in ((model, 0), (other, 0), (model, 3 * PAGE), (other, 3 * PAGE)):
            with llama_host(which, client) as host:
                assert_equal(host.run(prompt), (loaded, uncached(which, prompt)))


def test_a_cache_with_a_client_of_its_own_closes_it(model: Model) -> None:
    with Context(model) as context:
        cache = PromptCache(context.pointer, library=model.lib, model_files=[model.path])
        with cache:
            assert not cache.client.attached
        assert "closed" in repr(cache.client)
