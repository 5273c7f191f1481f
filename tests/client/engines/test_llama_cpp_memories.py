"""Tests the adapter of llama.cpp with all kinds of memories and types of caches: plain, window, hybrid, recurrent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from llama_driver import Context, Logits, Model, Tokens
from llama_host import llama_host, prompt_of, uncached
from pagetier.client import Client
from pagetier.client.adapters import GroupKeys
from pagetier.client.engines.llama_cpp import PromptCache
from random_gguf import WRITERS

ARENA = "64MiB"
PAGE = 64
CACHES = (
    *({"k": kind, "v": kind, "flash_attn_type": 1} for kind in ("f16", "bf16", "q8_0")),
    *({"k": "f16", "v": "f16", "flash_attn_type": 0}, {"k": "q8_0", "v": "bf16", "flash_attn_type": 0}),
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Model]]:
    folder = tmp_path_factory.mktemp("models")
    loaded = {name: Model(write(folder / f"{name}.gguf", 1)) for name, write in WRITERS.items()}
    yield loaded
    for model in loaded.values():
        model.close()


def ids(params: dict[str, Any]) -> str:
    return "-".join(map(str, params.values()))


@pytest.mark.parametrize("params", CACHES, ids=ids)
@pytest.mark.parametrize("name", WRITERS)
def test_hits_on_hits_have_exactly_the_logits_without_a_cache(
    models: dict[str, Model], client: Client, name: str, params: dict[str, Any]
) -> None:
    """Another process would do the same: each prompt is computed in a context of its own."""
    prompt = prompt_of(6 * PAGE + 9, seed=CACHES.index(params))
    for pages, loaded in ((2, 0), (3, 2), (6, 3)):
        beginning = prompt[: pages * PAGE + 9]
        with llama_host(models[name], client, **params) as host:
            tokens, logits = host.run(beginning)
            if name != "mamba":  # its state does not depend on the types of caches, so that others may have stored it
                assert tokens == loaded * PAGE
        assert np.array_equal(logits, uncached(models[name], beginning, **params))


@pytest.mark.parametrize("name", WRITERS)
def test_a_hit_needs_no_more_than_the_end_of_a_window_or_the_last_state(
    models: dict[str, Model], client: Client, name: str
) -> None:
    prompt = prompt_of(6 * PAGE + 1, seed=200)
    pages = {"llama": [6], "gemma3": [6, 1], "lfm2": [6, 1], "jamba": [6, 1], "qwen3next": [6, 1], "mamba": [1]}
    with llama_host(models[name], client) as host:
        assert host.run(prompt)[0] == 0
        keys = [GroupKeys(one.group, one.namespace.keys(prompt)) for one in host.cache.groups]
        with client.find_groups(keys, 6 * PAGE) as found:
            assert [len(match) for match in found.matches] == pages[name]


@pytest.mark.parametrize("name", WRITERS)
def test_only_states_that_still_exist_are_stored(models: dict[str, Model], client: Client, name: str) -> None:
    """The host decodes all at once, and generates: states of earlier tokens are gone."""
    prompt = prompt_of(4 * PAGE, seed=201)
    stored = {"llama": 4, "gemma3": 8, "lfm2": 5, "jamba": 5, "qwen3next": 5, "mamba": 1}
    with llama_host(models[name], client) as host:
        host.cache.load(prompt)
        expected = host.context.decode(prompt)
        assert host.cache.store() == stored[name]
        assert host.cache.store() == 0
        host.context.decode(prompt[:1], len(prompt))
        assert host.cache.store(np.append(prompt, prompt[0])) == 0
    ending = np.append(prompt, prompt[:PAGE])
    with llama_host(models[name], client) as host:
        assert host.run(ending)[0] == 4 * PAGE
    assert expected.shape


def ring(**params: Any) -> dict[str, Any]:
    return {"swa_full": False, "n_batch": 64, **params}


def off(logits: Logits, expected: Logits) -> float:
    return float(np.abs(logits - expected).max())


def restored(model: Model, prompt: Tokens, tokens: int, params: dict[str, Any]) -> Logits:
    """Returns the logits after llama.cpp's own save and load of the first tokens."""
    with Context(model, **params) as first:
        for start in range(0, tokens, PAGE):
            first.decode(prompt[start : start + PAGE], start)
        state = first.state()
    with Context(model, **params) as second:
        second.restore(state)
        return second.decode(prompt[tokens:], tokens)


@pytest.mark.parametrize("params", [ring(), ring(flash_attn_type=0), ring(k="q8_0", v="q8_0")], ids=ids)
def test_a_window_ring_is_no_further_off_than_llama_cpps_own_save(
    models: dict[str, Model], client: Client, params: dict[str, Any]
) -> None:
    model = models["gemma3"]
    prompt = prompt_of(8 * PAGE + 9, seed=202)
    expected = uncached(model, prompt, **params)
    with llama_host(model, client, **params) as host:
        assert off(host.run(prompt)[1], expected) == 0
    with llama_host(model, client, **params) as host:
        loaded, logits = host.run(prompt)
    assert loaded == 8 * PAGE
    assert off(logits, expected) <= max(off(restored(model, prompt, loaded, params), expected), 1e-3)


def test_pages_that_left_the_window_ring_are_not_stored(models: dict[str, Model], client: Client) -> None:
    """The host decodes more at once than the ring has: the base is stored, and the end of the window."""
    prompt = prompt_of(12 * PAGE + 1, seed=203)
    params = ring(n_batch=1024)
    with llama_host(models["gemma3"], client, **params) as host:
        host.cache.load(prompt)
        host.context.decode(prompt)
        assert 12 < host.cache.store() < 24
    with llama_host(models["gemma3"], client, **params) as host:
        loaded, logits = host.run(prompt)
        assert loaded == 12 * PAGE
    expected = uncached(models["gemma3"], prompt, **params)
    assert off(logits, expected) < 0.05
    with llama_host(models["gemma3"], client, **params) as host:
        assert host.cache.load(prompt[: 2 * PAGE + 1]) == 0, "its window was gone"


@pytest.mark.parametrize("name", ["lfm2", "jamba", "qwen3next", "mamba"])
def test_a_recurrent_state_in_place_cannot_be_cut(models: dict[str, Model], client: Client, name: str) -> None:
    prompt = prompt_of(3 * PAGE + 5, seed=204)
    expected = uncached(models[name], prompt)
    with llama_host(models[name], client) as host:
        host.context.decode(prompt[: PAGE + 5])
        assert host.cache.load(prompt, present=PAGE + 5) == PAGE + 5
        assert host.cache.load(prompt, present=PAGE) == 0
        assert np.array_equal(host.run(prompt)[1], expected)
        assert host.cache.load(prompt, present=2 * PAGE) == 3 * PAGE


@pytest.mark.parametrize("params", CACHES, ids=ids)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_size_of_a_page_is_known_before_there_is_one(
    models: dict[str, Model], client: Client, name: str, params: dict[str, Any]
) -> None:
    with llama_host(models[name], client, **params) as host:
        expected = host.cache._state.sizes_of(PAGE)
        host.context.decode(prompt_of(PAGE, seed=9))
        assert host.cache._state.page_size(0, 0) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_pages_of_two_batches_are_computed_in_batches(models: dict[str, Model], client: Client, name: str) -> None:
    prompt, model = prompt_of(5 * PAGE + 9, seed=10), models[name]
    for loaded in (0, 4 * PAGE):
        with (
            Context(model) as context,
            PromptCache(
                context.pointer, library=model.lib, model_files=[model.path], client=client, page_tokens=2 * PAGE
            ) as cache,
        ):
            batches = [
                (batch, context.decode(prompt[batch.start : batch.stop], batch.start))
                for batch in cache.prefill(prompt)
            ]
        assert [batch.start for batch, _ in batches] == [*range(loaded, len(prompt), PAGE)]
        assert np.array_equal(batches[-1][1], uncached(model, prompt))
