"""Tests that one model never finds another model's pages, even with the same name and the same tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_model
from one_host import MODELS, Scene, ask, exact, prompt, scene_of, texts

PROMPT = prompt(50)


def as_it_was(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tiny_model.make("llama", MODELS), folder)


def with_other_rope(folder: Path) -> None:
    as_it_was(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.get("rope_parameters") or config
    rope["rope_theta"] = 500.0
    path.write_text(json.dumps(config))


def with_other_weights(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(tiny_model.make("llama", MODELS, seed=1), folder)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A daemon with the pages of one model."""
    with scene_of("llama") as there:
        there.model = tmp_path_factory.mktemp("name") / "model"
        yield there


@pytest.fixture(scope="module")
def expected(scene: Scene) -> dict[str, Any]:
    """The model's answer from vLLM's own cache."""
    as_it_was(scene.model)
    with scene.engine() as engine:
        ask(engine, PROMPT)
        expected = ask(engine, PROMPT)
    scene.settle()
    return expected


@pytest.mark.parametrize(
    ("change", "settings"),
    [(with_other_rope, {}), (with_other_weights, {}), (as_it_was, {"dtype": "float32"})],
    ids=["rope", "weights", "dtype"],
)
def test_another_model_of_the_same_name_finds_nothing(
    scene: Scene, expected: dict[str, Any], change: Callable[[Path], None], settings: dict[str, str]
) -> None:
    change(scene.model)
    with scene.engine(engine=settings) as engine:
        other = ask(engine, PROMPT)
        assert other["external"] == other["answers"][0]["cached"] == 0
        assert exact(other) != exact(expected)
        again = ask(engine, PROMPT)
        assert texts(again) == texts(other)
        scene.settle()
    as_it_was(scene.model)


def test_the_same_model_finds_its_own_pages_among_others(scene: Scene, expected: dict[str, Any]) -> None:
    with scene.engine() as engine:
        again = ask(engine, PROMPT)
        assert again["external"] == scene.hit()
        assert exact(again) == exact(expected)
