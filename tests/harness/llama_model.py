"""A plugin of tests of llama.cpp: the model that most of them use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from llama_driver import Model
from random_gguf import write_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """Yields a Llama with random weights."""
    with Model(write_llama(tmp_path_factory.mktemp("models") / "llama.gguf")) as loaded:
        yield loaded
