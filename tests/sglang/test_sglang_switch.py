"""The variable PAGETIER under SGLang: its settings as SGLang resolves them, and its hooks beside those of others."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sglang_imports  # noqa: F401  before SGLang
from disk_daemon import DiskDaemon
from eventually import eventually
from sglang_engine import SglangEngine
from sglang_flags import LINKER_CONFIG, LINKER_FLAGS, Resolve, linker
from sglang_model import Spec, whole

pytest_plugins = ("sglang_daemon", "sglang_resolver")

OFF = {"on": False, "backend": "mooncake", "config": None}
SPEC = Spec("mha", 16)
PAGES = 4
_STEPS = 100  # of the scheduler, in which it announces what it can


@pytest.mark.parametrize(
    ("value", "settings"),
    [("1", {}), ("mode=load disk_timeout=1s", {"mode": "load_only", "disk_timeout": 1.0})],
)
def test_one_variable_selects_the_linker(resolve: Resolve, value: str, settings: dict[str, Any]) -> None:
    found = resolve(value)
    assert found == {
        "on": True,
        "backend": "dynamic",
        "config": linker(**settings, switch=value),
        "page": 1,
        "lines": [],
        "error": "",
    }


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_without_the_variable_nothing_changes(resolve: Resolve, value: str) -> None:
    assert resolve(value) == OFF | {"page": 1, "lines": [], "error": ""}


@pytest.mark.parametrize(
    "flags",
    [
        ("--enable-hierarchical-cache",),
        ("--enable-lmcache",),
        ("--enable-flexkv",),
        ("--disable-radix-cache",),
        ("--radix-cache-backend", "flexkv"),
        ("--enable-hisparse",),
        ("--enable-unified-memory",),
        ("--enable-kv-cache-sharding",),
        ("--encoder-only",),
    ],
    ids=" ".join,
)
def test_a_flag_that_excludes_it_is_named(resolve: Resolve, flags: tuple[str, ...]) -> None:
    plain, found = resolve("0", *flags), resolve("1", *flags)
    assert {name: found[name] for name in OFF} == OFF
    assert found["error"] == plain["error"], "SGLang says what it says without the variable"
    line = f"PAGETIER=1 has no effect: {' '.join(flags[:1] if flags[0] == '--radix-cache-backend' else flags)} is set"
    assert found["lines"] == ([] if found["error"] else [line])


def test_a_linker_that_is_selected_by_flags_stays(resolve: Resolve) -> None:
    config = linker(salt="own")
    found = resolve("mode=save", *LINKER_FLAGS, LINKER_CONFIG, json.dumps(config))
    assert (found["on"], found["config"], found["error"]) == (True, config, "")
    (line,) = found["lines"]
    assert line.startswith("PAGETIER=mode=save has no effect: --enable-unified-cache-external-linker (which names")


def test_an_unknown_word_is_named(resolve: Resolve) -> None:
    found = resolve("banana")
    assert {name: found[name] for name in OFF} == OFF and not found["error"]
    (line,) = found["lines"]
    assert line.startswith('PAGETIER=banana has no effect: "banana" is unknown')


def test_what_sglang_rejects_only_with_the_linker_starts_without_it(resolve: Resolve) -> None:
    found = resolve("1", "--disaggregation-mode", "decode")  # which switches the radix cache off
    assert {name: found[name] for name in OFF} == OFF and not found["error"]
    (line,) = found["lines"]
    assert line.startswith("PAGETIER=1 has no effect: --enable-unified-cache-external-linker requires the default")


@pytest.mark.parametrize(("mode", "stored", "loaded"), [("both", 1, True), ("save_only", 1, False)])
def test_the_mode_of_the_linker(daemon: DiskDaemon, mode: str, stored: int, loaded: bool) -> None:
    with SglangEngine(SPEC, daemon.socket, salt=f"mode {mode}", mode=mode) as engine:
        assert engine.insert(1, PAGES) == [stored]
        engine.reset()
        assert (engine.restore(1, PAGES) == whole(SPEC, PAGES)) is loaded


def test_an_engine_that_only_loads_stores_nothing(daemon: DiskDaemon) -> None:
    with SglangEngine(SPEC, daemon.socket, salt="loads", mode="load_only") as engine:
        assert engine.insert(2, PAGES) == [0]
    with SglangEngine(SPEC, daemon.socket, salt="loads") as engine:
        assert engine.insert(1, PAGES) == [1]
    with SglangEngine(SPEC, daemon.socket, salt="loads", mode="load_only") as engine:
        assert engine.restore(1, PAGES) == whole(SPEC, PAGES)


def announced(engine: SglangEngine) -> set[str]:
    """Returns the tiers in which pages are announced."""
    engine.poll()
    return {event["medium"] for event in engine.events()[0] if event["type"] == "BlockStored"}


@pytest.mark.parametrize(
    ("change", "line", "announces"),
    [
        ("another plugin alone", "announces no pages to routers: a hook of other on", False),
        ("another plugin and the entry point", "shares UnifiedRadixCache.take_events with a hook of other", True),
        ("the entry point", "", True),
    ],
)
def test_hooks_of_others_are_named(daemon: DiskDaemon, change: str, line: str, announces: bool) -> None:
    with SglangEngine(SPEC, daemon.socket, salt=change, publish="", change=change) as engine:
        engine.insert(1, PAGES)
        seen: set[str] = set()

        def is_announced() -> bool:
            seen.update(announced(engine))
            return {"GPU", "CPU_PINNED"} <= seen

        assert eventually(is_announced) if announces else not any(is_announced() for _ in range(_STEPS))
        assert "GPU" in seen
        named = [text for text in engine.log.splitlines() if "UnifiedRadixCache.take_events" in text]
        named = [text for text in named if "pagetier.sglang" in text]
        assert len(named) == bool(line) and all(line in text for text in named), named
