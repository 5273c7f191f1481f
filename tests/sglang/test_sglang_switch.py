"""The variable PAGETIER under SGLang: its settings as SGLang resolves them, and its hooks beside those of others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.server_args import ServerArgs

import sglang_imports  # noqa: F401  before SGLang
from disk_daemon import DiskDaemon
from eventually import eventually
from pagetier.client.engines.sglang.plugin import resolve_with_linker
from sglang_engine import SglangEngine
from sglang_model import Spec, whole, write_config
from sglang_model_configs import write_model_config

pytest_plugins = ("sglang_daemon",)

Resolve = Callable[..., dict[str, Any]]

OFF = {"on": False, "backend": "mooncake", "config": None}
SPEC = Spec("mha", 16)
PAGES = 4
_PROGRAM = Path(__file__).with_name("sglang_settings.py")
_WAIT_S = 60.0


@pytest.fixture(scope="module")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resolve]:
    """Resolves settings in a process that has loaded SGLang's plugins."""
    model = write_config(tmp_path_factory.mktemp("settings") / "model", SPEC)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(_PROGRAM), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdin and process.stdout
        commands, answers = process.stdin, process.stdout

        def resolved(value: str, *flags: str) -> dict[str, Any]:
            commands.write(json.dumps([value, flags]) + "\n")
            commands.flush()
            answer: dict[str, Any] = json.loads(answers.readline())
            return answer

        yield resolved
        commands.close()


def linker(**settings: Any) -> dict[str, Any]:
    """Returns the configuration of the linker with these settings."""
    module = "pagetier.client.engines.sglang"
    return {"linker": "PagetierLinker", "linker_module_path": module, "linker_extra_config": settings}


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
    flags = ["--enable-unified-cache-external-linker", "--unified-cache-external-linker-backend", "dynamic"]
    found = resolve("mode=save", *flags, "--unified-cache-external-linker-config", json.dumps(config))
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


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Returns a function that returns the folder with a model's configuration."""
    folders = tmp_path_factory.mktemp("models")

    def folder(name: str) -> str:
        path = folders / name
        return str(path if path.exists() else write_model_config(path, name))

    return folder


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("Llama 3.1 8B", 64),
        ("Qwen2.5 0.5B", 256),
        ("Qwen2.5 7B", 128),
        ("DeepSeek V3", 128),
        ("gemma-3-4b", 64),
        ("gpt-oss-20b", 64),
    ],
)
def test_pages_fill_frames_without_a_setting(
    resolve: Resolve, folder_of: Callable[[str], str], name: str, tokens: int
) -> None:
    flags = ["--model-path", folder_of(name), "--attention-backend", "triton"]
    plain, found = resolve("0", *flags), resolve("1", *flags)
    assert (plain["page"], plain["lines"], plain["error"]) == (1, [], "")
    assert (found["on"], found["page"], found["error"]) == (True, tokens, "")
    (line,) = found["lines"]
    assert line.startswith(f"pagetier set --page-size {tokens}, so that pages fill frames")


@pytest.mark.parametrize(
    ("page", "flags"),
    [
        (1, ("--page-size", "1")),
        (16, ("--page-size", "16")),
        (1, ("--kv-events-config", '{"publisher": "null"}')),
        (1, ("--chunked-prefill-size", "1000")),  # which SGLang rejects beside longer pages
    ],
    ids=str,
)
def test_where_the_page_size_is_sglangs(
    resolve: Resolve, folder_of: Callable[[str], str], page: int, flags: tuple[str, ...]
) -> None:
    model = ["--model-path", folder_of("Qwen2.5 7B"), "--attention-backend", "triton"]
    found = resolve("1", *model, *flags)
    assert (found["on"], found["page"], found["lines"], found["error"]) == (True, page, [], "")


def test_recurrent_states_without_a_buffer_keep_one_token(resolve: Resolve, folder_of: Callable[[str], str]) -> None:
    flags = ["--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule"]
    found = resolve("1", "--model-path", folder_of("Qwen3-Next"), "--attention-backend", "triton", *flags)
    assert (found["on"], found["page"], found["error"]) == (True, 1, "")


def test_what_sglang_rejects_with_any_page_size_starts_without_the_linker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def resolve(args: Any) -> None:
        tried.append((args.enable_unified_cache_external_linker, args.page_size))
        if args.enable_unified_cache_external_linker:
            args._resolved_overrides = [("pagetier", {"page_size": 64})] if args.page_size is None else []
            raise ValueError("no linker")

    monkeypatch.setenv("PAGETIER", "1")
    args = ServerArgs(model_path="model")
    resolve_with_linker(resolve, args)
    assert tried == [(True, None), (True, 1), (False, None)]
    assert not hasattr(args, "_resolved_overrides") and args.unified_cache_external_linker_config is None
    assert [one.getMessage() for one in caplog.records] == ["PAGETIER=1 has no effect: no linker"]


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

        assert eventually(is_announced, _WAIT_S) if announces else not eventually(is_announced, 1.0)
        assert "GPU" in seen
        named = [text for text in engine.log.splitlines() if "UnifiedRadixCache.take_events" in text]
        named = [text for text in named if "pagetier.sglang" in text]
        assert len(named) == bool(line) and all(line in text for text in named), named
