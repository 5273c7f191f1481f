"""Tests that pages of llama.cpp are shared only by hosts that compute the same state."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")

from llama_driver import Model
from llama_host import LlamaHost, llama_host, prompt_of, uncached
from pagetier.client import Client
from random_gguf import WINDOW, write_gemma3, write_llama, write_lora

pytest_plugins = ("llama_model",)
ARENA = "64MiB"
PAGE = 64
PROMPT = prompt_of(3 * PAGE + 1, seed=300)
YARN = {"rope_scaling_type": 2, "rope_freq_scale": 0.5, "yarn_orig_ctx": 4096}


@pytest.fixture
def stored(model: Model, client: Client) -> None:
    """Stores the prompt with the settings that other hosts change."""
    with llama_host(model, client) as host:
        host.run(PROMPT)
        assert host.run(PROMPT)[0] == 3 * PAGE


def digests(host: LlamaHost) -> list[bytes]:
    return [one.namespace.digest for one in host.cache.groups]


@pytest.mark.parametrize(
    "params",
    [
        {"rope_freq_base": 10001.0},
        {"rope_freq_scale": 0.999},
        YARN,
        YARN | {"yarn_beta_fast": 16.0},
        YARN | {"yarn_beta_slow": 4.0},
        YARN | {"yarn_ext_factor": 0.9},
        YARN | {"yarn_orig_ctx": 1000},
        {"k": "bf16"},
        {"v": "q8_0"},
        {"flash_attn_type": 0},
        {"n_ubatch": 32},
    ],
    ids=str,
)
@pytest.mark.usefixtures("stored")
def test_a_setting_that_changes_the_state_is_a_miss(model: Model, client: Client, params: dict[str, Any]) -> None:
    with llama_host(model, client, **params) as host:
        loaded, logits = host.run(PROMPT)
        assert loaded == 0
        assert np.array_equal(logits, uncached(model, PROMPT, **params))
        loaded, logits = host.run(PROMPT)
        assert loaded == 3 * PAGE
        assert np.array_equal(logits, uncached(model, PROMPT, **params))


def test_models_with_another_window_share_no_pages(client: Client, tmp_path: Path) -> None:
    """Two tokens have the same state with every window."""
    path = write_gemma3(tmp_path / "gemma3.gguf")
    with Model(path) as model, llama_host(model, client) as host:
        host.run(PROMPT)
        assert host.run(PROMPT)[0] == 3 * PAGE
    with Model(path, gemma3__attention__sliding_window=WINDOW // 2) as model, llama_host(model, client) as host:
        loaded, logits = host.run(PROMPT)
        assert loaded == 0
        assert np.array_equal(logits, uncached(model, PROMPT))


@pytest.mark.parametrize("params", [{"n_ctx": 512}, {"n_threads": 2}, {"users": 3}, {"n_batch": 64}], ids=str)
@pytest.mark.usefixtures("stored")
def test_a_setting_that_changes_no_state_is_a_hit(model: Model, client: Client, params: dict[str, Any]) -> None:
    with llama_host(model, client, **params) as host:
        loaded, logits = host.run(PROMPT)
        assert loaded == 3 * PAGE
        assert np.array_equal(logits, uncached(model, PROMPT))


@pytest.mark.usefixtures("stored")
def test_lora_adapters_with_their_scales_do_not_share_pages(model: Model, client: Client, tmp_path: Path) -> None:
    one, other = (write_lora(tmp_path / f"{seed}.gguf", seed) for seed in (1, 2))
    seen = []
    for adapters, scales in (([one], [1.0]), ([other], [1.0]), ([one], [0.5]), ([one, other], [1.0, 1.0])):
        with llama_host(model, client) as host:
            host.context.use_lora(adapters, scales)
            host.cache.renew()
            seen += digests(host)
            loaded, logits = host.run(PROMPT)
            assert loaded == 0
            assert np.array_equal(host.run(PROMPT)[1], logits)
            host.context.use_lora([], [])
            host.cache.renew()
            loaded, logits = host.run(PROMPT)
            assert loaded == 3 * PAGE
            assert np.array_equal(logits, uncached(model, PROMPT))
    assert len(set(seen)) == 4


@pytest.mark.usefixtures("stored")
def test_the_same_adapter_shares_pages(model: Model, client: Client, tmp_path: Path) -> None:
    adapter = write_lora(tmp_path / "lora.gguf", 3)
    answers = []
    for loaded in (0, 3 * PAGE):
        with llama_host(model, client) as host:
            host.context.use_lora([adapter], [1.0])
            host.cache.renew()
            answers.append(host.run(PROMPT))
            assert answers[-1][0] == loaded
    assert np.array_equal(answers[0][1], answers[1][1])


@pytest.mark.usefixtures("stored")
def test_a_flipped_byte_of_the_file_is_a_miss(model: Model, client: Client, tmp_path: Path) -> None:
    """A byte of an embedding that the probe does not use."""
    content = bytearray(model.path.read_bytes())
    content[-5] ^= 1
    changed = tmp_path / "llama.gguf"
    changed.write_bytes(content)
    with Model(changed) as other, llama_host(other, client) as host:
        assert host.run(PROMPT)[0] == 0


@pytest.mark.usefixtures("stored")
def test_a_copy_of_the_file_is_a_hit(model: Model, client: Client, tmp_path: Path) -> None:
    copy = tmp_path / "another name.gguf"
    copy.write_bytes(model.path.read_bytes())
    with Model(copy) as other, llama_host(other, client) as host:
        assert host.run(PROMPT)[0] == 3 * PAGE


def test_a_file_that_is_changed_in_place_is_another_model(client: Client, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "llama.gguf", 7)
    seen = []
    for seed in (7, 8):
        write_llama(path, seed)
        os.utime(path, (1, 1))
        with Model(path) as model, llama_host(model, client) as host:
            seen += digests(host)
    assert len(set(seen)) == 2


@pytest.mark.usefixtures("stored")
def test_tenants_do_not_share_pages(model: Model, client: Client) -> None:
    from pagetier.client.engines.llama_cpp import PromptCache

    with llama_host(model, client) as host:
        pointer = host.context.pointer
        tenant = PromptCache(pointer, library=model.lib, model_files=[model.path], client=client, salt="tenant")
        assert tenant.load(PROMPT) == 0
        assert host.cache.load(PROMPT) == 3 * PAGE
        wider = PromptCache(pointer, library=model.lib, model_files=[model.path], client=client, page_tokens=32)
        assert wider.load(PROMPT) == 0
