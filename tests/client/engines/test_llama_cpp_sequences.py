"""Tests the adapter of llama.cpp with several sequences, with hosts that change them, and with what it rejects."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from llama_driver import Context, Model
from llama_host import LlamaHost, llama_host, prompt_of, uncached
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache
from pagetier.client.engines.unsupported import UnsupportedError

pytest_plugins = ("llama_model",)
ARENA = "64MiB"
PAGE = 64


def cache_of(context: Context, client: Client) -> PromptCache:
    model = context.model
    return PromptCache(context.pointer, library=model.lib, model_files=[model.path], client=client)


def loads(host: LlamaHost, prompt: Any, seq: int = 0) -> int:
    """Returns how many tokens of a prompt are cached."""
    return host.cache.load(prompt, seq)


# ---- several sequences


def test_sequences_do_not_change_each_other(model: Model, client: Client) -> None:
    """Each sequence is computed beside the others, and loads what another one stored."""
    prompts = [prompt_of(3 * PAGE + 5 * seq, seed=20 + seq) for seq in range(3)]
    with llama_host(model, client, users=3) as host:
        computed = [host.run(prompt, seq) for seq, prompt in enumerate(prompts)]
        states = [host.context.state(seq) for seq in range(3)]
    with llama_host(model, client, users=3) as host:
        loaded = [host.run(prompt, seq) for seq, prompt in enumerate(prompts)]
        assert [tokens for tokens, _ in loaded] == [(len(prompt) - 1) // PAGE * PAGE for prompt in prompts]
        for seq in range(3):
            assert np.array_equal(loaded[seq][1], computed[seq][1])
            assert np.array_equal(host.context.state(seq), states[seq])


def test_a_sequence_loads_what_another_one_of_the_context_stored(model: Model, client: Client) -> None:
    """llama.cpp sums keys in other tiles where their cells are others, so that its own save and load rounds as much."""
    prompt = prompt_of(3 * PAGE + 5, seed=30)
    expected = uncached(model, prompt)
    with llama_host(model, client, users=2) as host:
        host.run(prompt, 0)
        loaded, logits = host.run(prompt, 1)
    with Context(model, users=2) as context:
        context.decode(prompt[: 3 * PAGE], 0, 0)
        context.restore(context.state(0), 1)
        saved = context.decode(prompt[3 * PAGE :], 3 * PAGE, 1)
    assert loaded == 3 * PAGE
    assert np.abs(logits - expected).max() <= np.abs(saved - expected).max()


def test_the_last_sequence_is_not_the_hosts(model: Model, client: Client) -> None:
    with llama_host(model, client, users=2) as host:
        for seq in (-1, 2):
            with pytest.raises(ValueError, match="those are 0 to 1"):
                host.cache.load(prompt_of(PAGE), seq)
            with pytest.raises(ValueError, match="those are 0 to 1"):
                host.cache.store(seq=seq)


def test_a_prompt_that_does_not_fit_beside_the_others_is_a_miss(model: Model, client: Client) -> None:
    prompt, other = prompt_of(4 * PAGE, seed=31), prompt_of(15 * PAGE, seed=32)
    with llama_host(model, client, users=2) as host:
        host.run(prompt)
    with llama_host(model, client, users=2) as host:
        host.run(other, 1)
        state = host.context.state(1)
        assert loads(host, prompt) == 0
        assert np.array_equal(host.context.state(1), state)
        assert loads(host, prompt[: PAGE + 1]) == PAGE, "the rest of the context is still in use"


# ---- hosts that change a sequence


def test_what_the_sequence_has_already_stays_if_the_cache_has_no_more(model: Model, client: Client) -> None:
    prompt = prompt_of(3 * PAGE, seed=40)
    with llama_host(model, client) as host:
        host.context.decode(prompt[: 2 * PAGE - 7])
        for present, loaded in ((2 * PAGE - 7, 2 * PAGE - 7), (PAGE, PAGE), (0, 0)):
            assert host.cache.load(prompt, present=present) == loaded
        host.run(prompt)
        assert host.cache.load(prompt, present=PAGE) == 2 * PAGE
        assert host.cache.load(prompt, present=2 * PAGE + 1) == 2 * PAGE, "the sequence has fewer"


def test_a_shifted_sequence_is_not_stored_until_its_next_load(model: Model, client: Client) -> None:
    prompt = prompt_of(3 * PAGE, seed=41)
    with llama_host(model, client) as host:
        host.run(prompt)
        host.context.remove(0, 10, 10 + PAGE)
        host.context.shift(10 + PAGE, 3 * PAGE, -PAGE)
        shifted = np.concatenate([prompt[:10], prompt[10 + PAGE :], prompt_of(PAGE, seed=42)])
        assert host.cache.store(shifted[: 2 * PAGE]) == 0
        host.context.decode(shifted[2 * PAGE :], 2 * PAGE)
        assert host.cache.store(shifted) == 0
        assert loads(host, np.append(shifted, 3)) == 0
        expected = uncached(model, shifted)
        assert np.array_equal(host.run(shifted)[1], expected)
        assert np.array_equal(host.run(shifted)[1], expected)


def test_a_shorter_sequence_with_the_same_beginning_is_not_stored_until_its_next_load(
    model: Model, client: Client
) -> None:
    """A prompt of one repeated token looks the same after a shift."""
    prompt = np.full(2 * PAGE, 7, np.int32)
    with llama_host(model, client) as host:
        host.run(prompt)
        host.context.remove(0, 10, 10 + PAGE)
        host.context.shift(10 + PAGE, 2 * PAGE, -PAGE)
        assert host.cache.store() == 0
        host.context.decode(np.full(2 * PAGE, 7, np.int32), PAGE)
        assert host.cache.store(np.full(3 * PAGE, 7, np.int32)) == 0


def test_forgotten_sequences_are_not_stored(model: Model, client: Client) -> None:
    prompt = prompt_of(2 * PAGE, seed=43)
    with llama_host(model, client) as host:
        host.cache.load(prompt)
        host.context.decode(prompt)
        host.cache.forget()
        assert host.cache.store() == 0
        assert host.cache.store(prompt) == 2, "the host says what the sequence has"


def test_a_sequence_without_its_beginning_is_not_stored(model: Model, client: Client) -> None:
    prompt = prompt_of(2 * PAGE, seed=44)
    with llama_host(model, client) as host:
        host.cache.load(prompt)
        host.context.decode(prompt)
        host.context.remove(0, 0, 5)
        assert host.cache.store() == 0


def test_a_prompt_with_an_image_is_neither_loaded_nor_stored(model: Model, client: Client) -> None:
    prompt = prompt_of(2 * PAGE + 1, seed=45)
    with llama_host(model, client) as host:
        host.run(prompt)
        for image in (prompt.copy(), prompt.tolist()):
            image[-2] = -1
            assert loads(host, image) == 0
            host.context.decode(prompt)
            assert host.cache.store() == 0
            assert host.cache.store(image) == 0
        assert next(iter(host.cache.prefill(image))).start == 0


def test_what_the_sequence_has_of_a_prompt_with_an_image_stays(model: Model, client: Client) -> None:
    prompt = prompt_of(2 * PAGE + 1, seed=48)
    for image in (prompt.copy(), prompt.tolist()):
        image[-2] = -1
        with llama_host(model, client) as host:
            host.context.decode(prompt[:40])
            assert host.cache.load(image, present=40) == 40
            assert host.cache._state.context.length(0) == 40
            host.context.decode(prompt[40:], 40)
            assert host.cache.store() == 0, "its pages have no keys"
            assert host.cache.store(np.append(prompt, prompt)) == 0, "nor have those after them"
            assert next(iter(host.cache.prefill(image, present=2 * PAGE + 1))).start == 2 * PAGE
            assert host.cache._state.context.length(0) == 2 * PAGE, "logits of the last token are needed"


def test_lora_adapters_and_settings_of_a_later_time_need_renew(model: Model, client: Client) -> None:
    """Without a change the namespace stays the same."""
    prompt = prompt_of(2 * PAGE + 1, seed=46)
    with llama_host(model, client) as host:
        host.run(prompt)
        host.cache.renew()
        assert host.cache.store() == 0
        assert loads(host, prompt) == 2 * PAGE


# ---- what is rejected


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n_seq_max": 1}, "set n_seq_max"),
        ({"kv_unified": False}, "set kv_unified = true"),
        ({"kv_unified": False, "n_seq_max": 1}, "set n_seq_max"),
        ({"attention_type": 1}, "cannot be shared"),
    ],
)
def test_a_context_that_cannot_be_paged_is_rejected(
    model: Model, client: Client, params: dict[str, Any], says: str
) -> None:
    with Context(model, **params) as context, pytest.raises(UnsupportedError, match=says):
        cache_of(context, client)


def test_a_context_whose_last_sequence_is_in_use_is_rejected(model: Model, client: Client) -> None:
    with Context(model) as context:
        context.decode(prompt_of(3), seq=1)
        with pytest.raises(UnsupportedError, match="sequence 1 is in use: set n_seq_max"):
            cache_of(context, client)


def test_a_context_without_room_for_a_probe_is_rejected(model: Model, client: Client) -> None:
    with Context(model, n_ctx=256) as context:
        context.decode(prompt_of(256))
        with pytest.raises(UnsupportedError, match="leave some cells of n_ctx free"):
            cache_of(context, client)
        context.remove()
        assert cache_of(context, client).load(prompt_of(3)) == 0


def test_a_build_without_a_function_is_rejected(model: Model, client: Client) -> None:
    with Context(model) as context, pytest.raises(UnsupportedError, match=r"no llama_n_ctx\(\): take one of"):
        PromptCache(context.pointer, library=ctypes.CDLL(None), model_files=[model.path], client=client)


def test_a_cache_in_a_context_that_is_in_use(model: Model, client: Client) -> None:
    """Its own sequence changes nothing of the host's."""
    prompt = prompt_of(2 * PAGE + 1, seed=47)
    with Context(model) as context:
        expected = context.decode(prompt)
        cache = cache_of(context, client)
        context.remove(0, len(prompt) - 1)
        assert np.array_equal(context.decode(prompt[-1:], len(prompt) - 1), expected)
        assert cache.store(prompt) == 2
    with llama_host(model, client) as host:
        assert loads(host, prompt) == 2 * PAGE
