"""The variable PAGETIER: what means on and off, its settings for both engines, and the lines that it costs."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from pagetier.client.engines.sglang.engine.settings import LinkerSettings
from pagetier.client.engines.switch import SettingsOrigin, log_no_effect, settings_of, shown, switched_on
from pagetier.client.engines.unsupported import UnsupportedError
from pagetier.client.engines.vllm.settings import ConnectorSettings, read_settings

BOTH = pytest.mark.parametrize("kind", [ConnectorSettings, LinkerSettings])


@pytest.mark.parametrize("value", ["", " ", "0", "off", "Off", "no", "FALSE"])
def test_it_is_off(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIER", value)
    assert switched_on() == ""
    monkeypatch.delenv("PAGETIER")
    assert switched_on() == ""


@BOTH
@pytest.mark.parametrize("value", ["1", "on", "ON", "yes", "true", " 1 "])
def test_it_is_on_without_settings(value: str, kind: type[msgspec.Struct], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGETIER", value)
    assert switched_on() == value.strip()
    assert settings_of(switched_on(), kind) == {"switch": value.strip()}


@BOTH
@pytest.mark.parametrize(
    ("value", "settings"),
    [
        ("mode=load disk_timeout=1s", {"mode": "load_only", "disk_timeout": 1.0}),
        ("mode=save", {"mode": "save_only"}),
        ("on mode=load_only", {"mode": "load_only"}),
        ("remote_timeout=500ms remote_least=512", {"remote_timeout": 0.5, "remote_least": 512}),
        ("disk_timeout=2", {"disk_timeout": 2.0}),
        ("name='an engine' salt=a=b", {"name": "an engine", "salt": "a=b"}),
        ("socket=/run/p.sock weights=", {"socket": "/run/p.sock", "weights": ""}),
    ],
)
def test_words_are_settings_of_both_engines(value: str, settings: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    given = settings_of(value, kind)
    assert given == settings | {"switch": value}
    made = msgspec.convert(given, kind)
    assert {name: getattr(made, name) for name in settings} == settings


@BOTH
@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("banana", '"banana" is unknown'),
        ("2", '"2" is unknown'),
        ("mod=load", '"mod=load" is unknown: set it to 1, 0, or NAME=VALUE, where NAME is one of socket,'),
        ("switch=1", '"switch=1" is unknown'),
        ("off mode=load", '"off" turns it off, and has no settings beside it'),
        ("mode=load 0", '"0" turns it off'),
        ("on on", '"on" is there twice'),
        ("mode=load mode=save", '"mode" is there twice'),
        ("mode=load,disk_timeout=1s", "; separate settings by spaces"),
        ("mode=never", "mode=never: it must be one of both, save_only, load_only, load, save"),
        ("mode=load disk_timeout=1x", "disk_timeout=1x: "),
        ("remote_least=few", "remote_least=few: "),
        ("name='an engine", "quotation mark"),
    ],
)
def test_a_wrong_word_is_named(value: str, named: str, kind: type[msgspec.Struct]) -> None:
    with pytest.raises(ValueError) as error:
        settings_of(value, kind)
    assert named in str(error.value) and "where NAME is one of switch" not in str(error.value)


@BOTH
def test_all_wrong_words_are_named_at_once(kind: type[msgspec.Struct]) -> None:
    with pytest.raises(ValueError) as error:
        settings_of("dsk_timeout=1s mode=never sokcet=/x remote_least=few", kind)
    found = str(error.value)
    for named in ('"dsk_timeout=1s" and "sokcet=/x" are unknown: ', "mode=never: ", "remote_least=few: "):
        assert found.count(named) == 1, found


def test_settings_of_one_engine_only_are_unknown_to_the_other() -> None:
    assert settings_of("store=on_eviction", ConnectorSettings)["store"] == "on_eviction"
    with pytest.raises(ValueError, match='"store=on_eviction" is unknown'):
        settings_of("store=on_eviction", LinkerSettings)


def test_what_users_set_by_hand_does_not_include_the_record_of_the_variable() -> None:
    with pytest.raises(ValueError, match="the known keys are") as error:
        read_settings({"sokcet": "x"})
    assert "switch" not in str(error.value)


def test_it_is_shown_as_a_shell_takes_it() -> None:
    assert shown("1") == "PAGETIER=1"
    assert shown("mode=load") == "PAGETIER=mode=load"
    assert shown("mode=load disk_timeout=1s") == 'PAGETIER="mode=load disk_timeout=1s"'


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnsupportedError("--enable-sleep-mode is set"), "--enable-sleep-mode is set"),
        (ValueError("1 error\n  for VllmConfig"), "1 error for VllmConfig"),
        (KeyError("pages"), "KeyError('pages')"),
        (ValueError("x" * 1000), "x" * 500),
    ],
)
def test_no_effect_costs_one_line(
    error: Exception, reason: str, caplog: pytest.LogCaptureFixture, own_process: None
) -> None:
    log_no_effect(logging.getLogger("pagetier.test"), "1", error)
    assert caplog.messages == [f"PAGETIER=1 has no effect: {reason}"]


@pytest.fixture
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process one that no engine's process has started."""
    monkeypatch.setenv("_PAGETIER_LOGGED_BY", "0")  # so that what the test sets is undone
    monkeypatch.delenv("_PAGETIER_LOGGED_BY")


def test_no_effect_is_logged_by_each_engine_and_not_by_the_processes_that_it_starts(
    caplog: pytest.LogCaptureFixture, own_process: None
) -> None:
    code = "import logging; from pagetier.client.engines.switch import log_no_effect as said\n"
    code += "said(logging.getLogger(), '1', ValueError('x'))"
    command = [sys.executable, "-c", code]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    assert alone.stderr.splitlines() == ["PAGETIER=1 has no effect: x"]
    for _ in range(2):
        log_no_effect(logging.getLogger("pagetier.test"), "1", ValueError("x"))
    assert caplog.messages == ["PAGETIER=1 has no effect: x"] * 2, "two engines of one process"
    started = subprocess.run(command, capture_output=True, text=True, check=True)
    assert started.stderr == ""


def test_the_log_names_the_place_of_settings() -> None:
    by_option, by_variable = SettingsOrigin("an option"), SettingsOrigin("an option", "1")
    assert (by_option.place, by_option.remark) == ("an option", "")
    assert by_variable.place == "PAGETIER" and "PAGETIER=0 turns it off" in by_variable.remark
