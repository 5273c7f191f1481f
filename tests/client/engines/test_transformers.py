"""Tests the transformers adapter with a real daemon: a cached run has exactly the logits of an uncached one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from disk_daemon import write_through

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from eventually import PATIENCE_S  # noqa: E402
from pagetier.client import Client, Namespace, Outcome  # noqa: E402

if TYPE_CHECKING:
    from pagetier.client.engines.transformers import PrefillCache

PAGE = 16
VOCABULARY = 97
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def model_of(dtype: Any = torch.float32, **settings: Any) -> Any:
    torch.manual_seed(5)
    config = transformers.LlamaConfig(**SMALL | settings)
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def prompt_of(tokens: int, seed: int = 1) -> Any:
    return torch.randint(VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(seed))


def namespace_of(model: Any, page_tokens: int, name: str = "") -> Namespace:
    """Calls the adapter, whose import takes seconds: a process that only collects this file is spared them."""
    from pagetier.client.engines import transformers as adapter

    return adapter.namespace_of(model, page_tokens, name=name)


def prompts_of(client: Client, model: Any) -> PrefillCache:
    from pagetier.client.engines.transformers import PrefillCache

    return PrefillCache(client, model, namespace_of(model, PAGE, name="test/llama"))


def uncached(prompts: PrefillCache, prompt: Any, logits_to_keep: int = 0) -> tuple[list[Any], Any]:
    """Returns the logits of every chunk, and the cache."""
    cache = transformers.DynamicCache()
    return list(prompts.prefill(prompt, cache, logits_to_keep)), cache


def stored(prompts: PrefillCache, prompt: Any) -> None:
    result = prompts.store(prompt, uncached(prompts, prompt)[1])
    assert set(result.outcomes) == {Outcome.STORED}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [5 * PAGE - 1, 5 * PAGE, 5 * PAGE + 1, 6 * PAGE + 7])
def test_a_cached_run_gives_exactly_the_logits_of_an_uncached_one(client: Client, dtype: Any, tokens: int) -> None:
    prompts = prompts_of(client, model_of(dtype))
    prompt = prompt_of(tokens, seed=tokens)
    expected, cache = uncached(prompts, prompt)
    assert prompts.store(prompt, cache).stored == tokens // PAGE
    cached = prompts.load(prompt)
    assert cached.tokens == cached.cache.get_seq_length() == (tokens - 1) // PAGE * PAGE
    left = list(prompts.prefill(prompt, cached.cache, logits_to_keep=0))
    assert sum(map(len, left)) == tokens - cached.tokens > 0
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(left, expected[-len(left) :], strict=True))
    for ours, theirs in zip(cached.cache.layers, cache.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)


def test_evicted_pages_are_loaded_from_disk() -> None:
    with write_through() as daemon, daemon.client(timeout=PATIENCE_S) as client:
        writer, prompts = prompts_of(client, model_of()), prompts_of(client, model_of())
        prompt = prompt_of(5 * PAGE + 3, seed=11)
        expected, _ = uncached(writer, prompt)
        stored(writer, prompt)  # the other one has computed nothing, and so it knows nothing that is faster than a disk
        cached = prompts.load(prompt)
        assert (cached.tokens, cached.pages_from_memory, cached.pages_from_disk) == (5 * PAGE, 5, 0)
        daemon.push_out(client, prompts.namespace.keys(prompt))
        assert prompts.load(prompt, timeout=0).pages_from_memory == 0
        client.prefetch(prompts.namespace.keys(prompt[: 5 * PAGE])).wait(PATIENCE_S)
        daemon.push_out(client, prompts.namespace.keys(prompt))
        cached = prompts.load(prompt)
        assert (cached.tokens, cached.pages_from_memory, cached.pages_from_disk) == (5 * PAGE, 0, 5)
        (*_, last) = prompts.prefill(prompt, cached.cache, logits_to_keep=0)
        assert torch.equal(last, expected[-1])


def test_a_prompt_with_another_ending_loads_the_common_pages(client: Client) -> None:
    prompts = prompts_of(client, model_of())
    beginning = prompt_of(4 * PAGE + 3, seed=2)
    stored(prompts, torch.cat((beginning, prompt_of(70, seed=3))))
    prompt = torch.cat((beginning, prompt_of(60, seed=4)))
    cached = prompts.load(prompt)
    assert cached.tokens == 4 * PAGE
    (*_, last) = prompts.prefill(prompt, cached.cache)
    assert last.shape == (1, VOCABULARY)
    assert torch.equal(last, uncached(prompts, prompt, logits_to_keep=1)[0][-1])
    result = prompts.store(prompt, cached.cache)
    assert (result.present, result.stored) == (4, len(prompt) // PAGE - 4)


def test_a_changed_page_changes_the_logits(client: Client) -> None:
    """The comparisons in this file depend on this."""
    prompts = prompts_of(client, model_of())
    prompt = prompt_of(3 * PAGE, seed=6)
    expected, cache = uncached(prompts, prompt)
    cache.crop(-PAGE)
    cache.layers[1].values[0, 1, 7, 3] *= 1.001
    (last,) = prompts.prefill(prompt, cache, logits_to_keep=0)
    assert not torch.equal(last, expected[-1])


def test_a_page_has_the_canonical_layout(client: Client) -> None:
    prompts = prompts_of(client, model_of())
    prompt = prompt_of(2 * PAGE, seed=7)
    _, cache = uncached(prompts, prompt)
    prompts.store(prompt, cache)
    page = np.zeros((2, 3, 2, 2, PAGE, 16), dtype=np.float32)
    assert page.nbytes == 2 * prompts.page_bytes
    with client.match(prompts.namespace.keys(prompt)) as match:
        assert client.load(match, page) == 2
    for layer, states in enumerate(cache.layers):
        for kv, state in enumerate((states.keys, states.values)):
            assert np.array_equal(page[1, layer, kv], state[0, :, PAGE:].numpy())


def test_without_a_daemon_everything_is_computed() -> None:
    with Client("/nowhere/pagetier.sock") as client:
        prompts = prompts_of(client, model_of())
        prompt = prompt_of(40)
        cached = prompts.load(prompt)
        assert cached.tokens == 0
        assert sum(map(len, prompts.prefill(prompt, cached.cache, logits_to_keep=0))) == 40
        assert prompts.store(prompt, cached.cache).refused == 2


@pytest.mark.parametrize("tokens", [0, 1, PAGE - 1])
def test_a_prompt_without_a_full_page_is_not_stored(client: Client, tokens: int) -> None:
    prompts = prompts_of(client, model_of())
    prompt = prompt_of(tokens)
    cached = prompts.load(prompt)
    assert cached.tokens == 0
    assert len(list(prompts.prefill(prompt, cached.cache))) == (tokens > 0)
    assert len(prompts.store(prompt, cached.cache)) == 0


def test_a_cache_that_does_not_fit_is_not_stored(client: Client) -> None:
    prompts = prompts_of(client, model_of())
    prompt = prompt_of(3 * PAGE, seed=8)
    other = prompts_of(client, model_of(num_key_value_heads=4))
    fewer = prompts_of(client, model_of(num_hidden_layers=2))
    for cache in (uncached(other, prompt)[1], uncached(fewer, prompt)[1], uncached(prompts, prompt[:-1])[1]):
        with pytest.raises(ValueError, match="the cache holds"):
            prompts.store(prompt, cache)
    several = uncached(prompts, prompt)[1]
    several.batch_repeat_interleave(2)
    with pytest.raises(ValueError, match="the cache holds"):
        prompts.store(prompt, several)
    assert prompts.load(prompt).tokens == 0


def test_the_namespace_contains_what_determines_a_page() -> None:
    space = namespace_of(model_of(), PAGE, name="test/llama")
    assert (space.model, space.dtype, space.page_tokens) == ("test/llama", "float32", PAGE)
    assert space.layout.startswith("page-1-")
    assert '"rope_type": "default"' in space.rope
    others = [
        namespace_of(model_of(torch.bfloat16), PAGE, name="test/llama"),
        namespace_of(model_of(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), PAGE, name="test/llama"),
        namespace_of(model_of(), 2 * PAGE, name="test/llama"),
        namespace_of(model_of(), PAGE, name="test/other"),
        msgspec.structs.replace(space, lora="an adapter"),
    ]
    assert len({space.digest, *(other.digest for other in others)}) == 1 + len(others)


def test_a_model_without_a_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="model of a namespace must not be empty"):
        namespace_of(model_of(), PAGE)


def test_models_whose_state_depends_on_more_than_the_prefix_are_rejected() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 64}
    with pytest.raises(ValueError, match="change with the prompt's length"):
        namespace_of(model_of(rope_parameters=rope), PAGE, name="test/llama")
    config = transformers.MistralConfig(**SMALL, sliding_window=8)
    with pytest.raises(ValueError, match="DynamicSlidingWindowLayer"):
        namespace_of(transformers.MistralForCausalLM(config), PAGE, name="test/mistral")


def test_the_client_does_not_import_torch() -> None:
    check = "import sys, pagetier.client, pagetier.client.engines; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
