"""Tests that engines share pages exactly if they have the same weights, whatever the names and places of these are."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny_model
from eventually import eventually
from one_host import MODELS, Scene, ask, ask_after_reset, exact, prompt, scene_of, texts
from vllm_engine import USER_CACHE

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


def with_weights_changed_in_place(folder: Path) -> None:
    """Changes the weights as a trainer does that writes to the same file."""
    with (folder / "model.safetensors").open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        file.seek(8 + size)
        content = bytearray(file.read())
        content[1::2] = bytes(byte ^ 128 for byte in content[1::2])  # the signs of all numbers in bfloat16
        file.seek(8 + size)
        file.write(content)


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
    [
        (with_other_rope, {}),
        (with_other_weights, {}),
        (with_weights_changed_in_place, {}),
        (as_it_was, {"dtype": "float32"}),
    ],
    ids=["rope", "weights", "in place", "dtype"],
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


def test_a_copy_of_the_model_in_another_folder_finds_the_same_pages(
    scene: Scene, expected: dict[str, Any], tmp_path: Path
) -> None:
    copy = shutil.copytree(scene.model, tmp_path / "copy", copy_function=shutil.copyfile)
    with Scene("llama", scene.daemon, copy).engine() as engine:
        found = ask(engine, PROMPT)
        assert found["external"] == scene.hit(), engine.log_tail()
        assert exact(found) == exact(expected)


def test_nothing_is_shared_until_the_weights_are_known(scene: Scene, expected: dict[str, Any], tmp_path: Path) -> None:
    copy = shutil.copytree(scene.model, tmp_path / "copy", copy_function=shutil.copyfile)
    with (USER_CACHE / "pagetier" / "files.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if another engine read weights
        with Scene("llama", scene.daemon, copy).engine(environment={"IDENTIFY_S": "1"}) as engine:
            before = scene.daemon.header().pages
            assert texts(ask(engine, PROMPT, prompt(51))) and ask_after_reset(engine, PROMPT)["external"] == 0
            scene.settle()
            assert scene.daemon.header().pages == before
            log = engine.log.read_text()
            assert "pagetier is on, and caches nothing yet: it " in log and "pagetier attached to" not in log
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert eventually(lambda: ask_after_reset(engine, PROMPT)["external"] == scene.hit()), engine.log_tail()
            assert exact(ask_after_reset(engine, PROMPT)) == exact(expected)
            ask(engine, prompt(52))
            scene.settle()
            assert ask_after_reset(engine, prompt(52))["external"] == scene.hit()


@pytest.mark.parametrize("setting", ["follow", "always"])
def test_vllms_own_switch_is_followed_unless_the_setting_says_always(
    scene: Scene, expected: dict[str, Any], setting: str
) -> None:
    with scene.engine(engine={"enable_prefix_caching": False}, extra={"prefix_caching": setting}) as engine:
        found = ask(engine, PROMPT)
        log = engine.log.read_text()
    assert texts(found) == texts(expected)
    assert found["external"] == (scene.hit() if setting == "always" else 0)
    assert log.count("vLLM's own prefix caching is off") == (setting == "follow")
    assert log.count("pagetier attached to") == (setting == "always")
