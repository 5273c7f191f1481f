"""Tests enable() with a class that does what a Llama of llama-cpp-python does: texts equal those without pagetier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from llama_driver import Model
from llama_host import prompt_of
from llama_python import Llama
from pagetier.client import Client
from pagetier.client.engines.llama_cpp import PromptCache, enable
from pagetier.client.engines.llama_cpp.hosts import shards_of
from pagetier.client.engines.unsupported import UnsupportedError
from random_gguf import write_jamba, write_lora

pytest_plugins = ("llama_model",)
ARENA = "64MiB"
PAGE = 64
NEW = 12


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model(write_jamba(tmp_path_factory.mktemp("models") / "jamba.gguf")) as loaded:
        yield loaded


def completion(llama: Llama, prompt: list[int], tokens: int = NEW) -> list[int]:
    return list(islice(llama.generate(prompt), tokens))


def expected(model: Model, prompt: list[int], tokens: int = NEW, recurrent: bool = False) -> list[int]:
    with closing(Llama(model, recurrent)) as llama:
        return completion(llama, prompt, tokens)


@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_another_llama_loads_the_prompt(client: Client, kind: str, request: pytest.FixtureRequest) -> None:
    model, recurrent = request.getfixturevalue(kind), kind == "hybrid"
    prompt = prompt_of(3 * PAGE + 5, seed=400).tolist()
    text = expected(model, prompt, recurrent=recurrent)
    for computed in (3 * PAGE + 5, 5):
        with closing(Llama(model, recurrent)) as llama, enable(llama, client=client, library=model.lib):
            assert completion(llama, prompt) == text
            assert llama.computed == computed + NEW - 1
            assert llama.input_ids[: len(prompt)].tolist() == prompt


@pytest.mark.parametrize("kind", ["model", "hybrid"])
def test_a_conversation_continues_in_another_llama(client: Client, kind: str, request: pytest.FixtureRequest) -> None:
    """What was generated is stored, too, as soon as a page is full."""
    model, recurrent = request.getfixturevalue(kind), kind == "hybrid"
    prompt = prompt_of(2 * PAGE + 5, seed=401).tolist()
    with closing(Llama(model, recurrent)) as llama, enable(llama, client=client, library=model.lib):
        answer = completion(llama, prompt, PAGE)
        longer = prompt + answer + prompt_of(20, seed=402).tolist()
        before = llama.computed
        text = completion(llama, longer)
        # The Llama's own prefix match leaves 20 tokens, unless its state cannot be cut; then the cache has pages.
        assert llama.computed - before <= NEW + 20 + PAGE
    with closing(Llama(model, recurrent)) as llama, enable(llama, client=client, library=model.lib):
        assert completion(llama, longer) == text
        assert llama.computed == len(longer) - 3 * PAGE + NEW - 1


def test_a_shorter_prefix_in_place_gives_way_to_a_longer_one_in_the_cache(model: Model, client: Client) -> None:
    prompt = prompt_of(4 * PAGE, seed=403).tolist()
    other = prompt[:10] + prompt_of(4 * PAGE, seed=404).tolist()
    texts = {0: expected(model, prompt), 1: expected(model, other)}
    with closing(Llama(model)) as llama, enable(llama, client=client, library=model.lib):
        for turn, computed in ((0, 4 * PAGE), (1, 4 * PAGE), (0, PAGE), (1, 10)):
            before = llama.computed
            assert completion(llama, (prompt, other)[turn]) == texts[turn]
            assert llama.computed - before == computed + NEW - 1


def test_what_follows_an_image_is_computed_and_not_stored(model: Model, client: Client) -> None:
    """A handler of images moves `n_tokens` itself, and leaves in `input_ids` what was there before."""
    prompt = prompt_of(3 * PAGE, seed=405)
    with closing(Llama(model)) as llama, enable(llama, client=client, library=model.lib) as cache:
        for image in (1, 2):
            llama.reset()
            llama.eval(prompt[:10].tolist())
            llama._ctx.context.decode(np.full(PAGE, image, np.int32), 10)
            llama.n_tokens += PAGE
            before = llama.computed
            llama.eval(prompt[10:].tolist())
            assert llama.computed - before == len(prompt) - 10
        assert cache.load(llama.input_ids[: llama.n_tokens]) == 0


def test_a_closed_cache_leaves_a_llama_as_it_was(model: Model, client: Client) -> None:
    prompt = prompt_of(2 * PAGE + 1, seed=406).tolist()
    text = expected(model, prompt)
    with closing(Llama(model)) as llama:
        with enable(llama, client=client, library=model.lib):
            assert completion(llama, prompt) == text
        llama.reset()
        assert completion(llama, prompt) == text
        assert llama.computed == 2 * (len(prompt) + NEW - 1)


def test_the_adapter_stays_on_the_new_context(model: Model, client: Client, tmp_path: Path) -> None:
    prompt = prompt_of(2 * PAGE + 1, seed=407).tolist()
    adapter = model.lib.llama_adapter_lora_init(model.pointer, str(write_lora(tmp_path / "lora.gguf")).encode())
    with closing(Llama(model)) as llama:
        llama._lora_adapter = adapter
        with enable(llama, client=client, library=model.lib):
            completion(llama, prompt)
            with_adapter = llama.logits
        with enable(llama, client=client, library=model.lib):
            llama.reset()
            before = llama.computed
            completion(llama, prompt)
            assert llama.computed - before == 1 + NEW - 1
            assert np.array_equal(llama.logits, with_adapter)
    with closing(Llama(model)) as llama, enable(llama, client=client, library=model.lib):
        completion(llama, prompt)
        assert llama.computed == len(prompt) + NEW - 1
        assert not np.array_equal(llama.logits, with_adapter)


def test_a_llama_with_all_logits_is_rejected(model: Model, client: Client) -> None:
    with closing(Llama(model)) as llama:
        llama._logits_all = True
        with pytest.raises(UnsupportedError, match="without logits_all"):
            enable(llama, client=client, library=model.lib)


def test_a_prompt_cache_takes_a_llama_whose_context_has_room(model: Model, client: Client) -> None:
    """It knows the model's file, and its own calls stay as they are."""
    prompt = prompt_of(2 * PAGE + 1, seed=408)
    with closing(Llama(model)) as llama:
        with pytest.raises(UnsupportedError, match="set n_seq_max"):
            PromptCache(llama, library=model.lib, client=client)
        with enable(llama, client=client, library=model.lib):
            llama.eval(prompt.tolist())
        cache = PromptCache(llama, library=model.lib, client=client)
        assert cache.load(prompt) == 2 * PAGE


def test_what_only_the_host_knows_has_to_be_given(model: Model) -> None:
    with closing(Llama(model)) as llama:
        for given in ({}, {"library": model.lib}, {"model_files": [model.path]}):
            with pytest.raises(TypeError, match="needs library and model_files"):
                PromptCache(llama._ctx.ctx, **given)
        with pytest.raises(TypeError, match="llama-cpp-python is not imported"):
            enable(llama)


def test_the_shards_of_a_model() -> None:
    assert shards_of(Path("/m/a.gguf")) == [Path("/m/a.gguf")]
    names = [f"/m/a-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    assert shards_of(Path(names[0])) == [Path(name) for name in names]
