"""The variable PAGETIER with real engines: no flag for pagetier, and flags that exclude it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from one_host import PAGE_TOKENS, REPORTS_FAILURES, Scene, ask, ask_after_reset, prompt, scene_of, texts
from vllm_engine import VllmEngine

PROMPT = prompt(60)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with scene_of("llama") as there:
        yield there


def engine_of(scene: Scene, value: str, seed: str = "0", **engine: Any) -> VllmEngine:
    """Starts an engine without any setting for pagetier but the variables."""
    environment = {"PAGETIER": value, "PAGETIER_SOCKET": str(scene.daemon.socket), "PYTHONHASHSEED": seed}
    return scene.engine(alone=True, engine=engine, environment=environment)


def lines_of(engine: VllmEngine) -> list[str]:
    """Returns the lines of an engine's log that name the variable."""
    return [line for line in engine.log.read_text().splitlines() if "PAGETIER" in line]


@pytest.mark.parametrize("value", ["1", "mode=both disk_timeout=30s"])
def test_one_variable_turns_it_on_and_one_line_says_so(scene: Scene, value: str) -> None:
    with engine_of(scene, value) as engine:
        assert scene.attached(engine), engine.log_tail()
        expected = ask(engine, PROMPT)
        scene.settle()
        again = ask_after_reset(engine, PROMPT)
        assert again["external"] == scene.hit() and texts(again) == texts(expected)
        (line,) = lines_of(engine)
    named = f"PAGETIER={value}" if value == "1" else f'PAGETIER="{value}"'
    assert line.endswith(f"; {named} turned it on, PAGETIER=0 turns it off")
    for found in (f"pagetier attached to {scene.daemon.socket}", "arena ", "disk ", "weights "):
        assert found in line
    assert f"pages of {PAGE_TOKENS['llama']} tokens" in line


@pytest.mark.parametrize(
    ("value", "flags", "named"),
    [
        ("1", {"enable_prefix_caching": False}, "--no-enable-prefix-caching is set"),
        (
            "1",
            {
                "kv_transfer_config": {
                    "kv_connector": "ExampleConnector",
                    "kv_role": "kv_both",
                    "kv_connector_extra_config": {"shared_storage_path": "/nonexistent"},
                }
            },
            "--kv-transfer-config is set",
        ),
        ("mode=never", {}, "mode=never: it must be one of"),
    ],
    ids=["prefix caching", "connector", "word"],
)
def test_what_excludes_it_is_named_and_the_engine_starts(
    scene: Scene, value: str, flags: dict[str, Any], named: str
) -> None:
    with engine_of(scene, value, **flags) as engine:
        assert texts(ask(engine, PROMPT))
        (line,) = lines_of(engine)
        assert f"PAGETIER={value} has no effect: {named}" in line
        assert not [slot for slot in scene.daemon.slots() if slot.name != "disk tier"]


def test_a_configuration_that_names_pagetier_already_is_used(scene: Scene) -> None:
    with scene.engine(environment={"PAGETIER": "mode=save"}) as engine:
        assert scene.attached(engine), engine.log_tail()
        ask(engine, PROMPT)
        scene.settle()
        assert ask_after_reset(engine, PROMPT)["external"] == scene.hit(), "the variable's mode has no effect"
        (line,) = lines_of(engine)
        assert "PAGETIER=mode=save has no effect: --kv-transfer-config is set and names pagetier's connector, " in line
        assert line.endswith(", which is used as it says")


def test_without_a_daemon_the_engine_starts_and_attaches_later(scene: Scene) -> None:
    scene.daemon.kill()
    with engine_of(scene, "1", seed="") as engine:
        assert texts(ask(engine, PROMPT))
        (line,) = lines_of(engine)
        assert "pagetier is not attached" in line and "PAGETIER=0 turns it off" in line
        scene.daemon.start()
        assert scene.attached(engine), engine.log_tail()
        later = prompt(61)
        expected = ask(engine, later)
        scene.settle()
        again = ask_after_reset(engine, later)
        assert again["external"] == scene.hit() and texts(again) == texts(expected)
        _, attached = lines_of(engine)
        assert ("set PYTHONHASHSEED to the same number" in attached) is not REPORTS_FAILURES, attached
