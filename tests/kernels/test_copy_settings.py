"""The settings of copies: files, their precedence, and rejected values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.config.settings_file import (
    COPY_VARIABLE,
    SettingsError,
    calibrated_path,
    load_settings,
    read_settings,
)
from pagetier.kernels.gpu.launch import GRID
from pagetier.shm.units import spell_size

KIB, MIB = 1 << 10, 1 << 20


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refused(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read_settings(text, "/x/copy.toml")
    return str(caught.value)


# --- values and limits ----------------------------------------------------------------------------------------


def test_the_defaults_have_known_values() -> None:
    settings = CopySettings()
    assert settings.stores == settings.loads == Thresholds(32 * KIB, 32 * KIB)
    assert (settings.path, settings.chunk, settings.depth) == ("auto", 64 * MIB, 4)
    assert (settings.store_bandwidth, settings.load_bandwidth) == (0, 0)
    assert settings.programs == GRID.programs


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("path", "both"), ("programs", 0), ("depth", 0), ("chunk", 0), ("staging", 1), ("load_bandwidth", -1)),
        *(("queue_limit", 0.0), ("reserve_timeout", float("nan")), ("reserve_timeout", float("inf"))),
    ],
)
def test_a_value_out_of_range_is_rejected_by_name(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{key} = "):
        CopySettings(**{key: value})


def test_thresholds_are_in_order() -> None:
    assert Thresholds(0, 0).kernel_below == 0
    with pytest.raises(ValueError, match="kernel_below = 5 exceeds staged_below = 4"):
        Thresholds(5, 4)
    with pytest.raises(ValueError, match="kernel_below = -1 is not between"):
        Thresholds(-1, 4)


# --- location of the file ---------------------------------------------------------------------------------------


def test_a_named_file_precedes_the_users_file_and_the_defaults(tmp_path: Path) -> None:
    named = put(tmp_path / "named.toml", "programs = 1")
    home = put(tmp_path / "home/.config/pagetier/copy.toml", "programs = 2")
    put(tmp_path / "xdg/pagetier/copy.toml", "programs = 3")
    env = {"HOME": str(tmp_path / "home")}
    assert load_settings(None, env).programs == 2
    env["XDG_CONFIG_HOME"] = "relative"
    assert load_settings(None, env).programs == 2
    env["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    assert load_settings(None, env).programs == 3
    env[COPY_VARIABLE] = str(named)
    assert load_settings(None, env).programs == 1
    assert load_settings(home, env).programs == 2
    assert load_settings(None, {"HOME": str(tmp_path / "missing"), COPY_VARIABLE: ""}).programs == 16
    assert load_settings(None, {}).programs == 16


def test_the_default_environment_is_that_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPY_VARIABLE, str(put(tmp_path / "named.toml", "programs = 5")))
    assert load_settings().programs == 5


def test_a_named_file_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    with pytest.raises(SettingsError, match=f"^{missing}: cannot be read: No such file"):
        load_settings(None, {COPY_VARIABLE: str(missing)})
    with pytest.raises(SettingsError, match="Is a directory"):
        load_settings(tmp_path)


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    path.write_bytes(b'path = "\xff"')
    with pytest.raises(SettingsError, match="not UTF-8"):
        load_settings(path)


@pytest.mark.parametrize(
    "text",
    [f"depth = {'7' * 5000}", f"depth = 0x{'f' * 5000}", f"depth = {'[' * 3000}", f"stores.{'a.' * 2000}a = 1"],
    ids=["digits", "hexadecimal", "brackets", "tables"],
)
def test_extreme_files_are_rejected(text: str) -> None:
    assert refused(text).startswith("/x/copy.toml: ")


def test_calibrated_thresholds_have_the_lowest_precedence(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    measured = calibrated_path(env)
    assert (measured, calibrated_path({"HOME": "/h"})) == (
        tmp_path / "xdg/pagetier/copy.calibrated.toml",
        Path("/h/.config/pagetier/copy.calibrated.toml"),
    )
    put(measured, '[stores]\nkernel_below = "1KiB"\n[loads]\nkernel_below = "2KiB"\n')
    assert load_settings(None, env).stores == Thresholds(KIB, 32 * KIB)
    written = put(measured.with_name("copy.toml"), "programs = 1\n[loads]\nstaged_below = '64KiB'\n")
    for settings in (load_settings(None, env), load_settings(written, env)):
        assert (settings.programs, settings.stores) == (1, Thresholds(KIB, 32 * KIB))
        assert settings.loads == Thresholds(32 * KIB, 64 * KIB), "a table replaces the measured one as a whole"
    put(measured, "[stores]\nkernel = 1\n")
    with pytest.raises(SettingsError, match=f"^{measured}: .*unknown field `kernel` - at `.*stores`"):
        load_settings(None, env)
    with pytest.raises(SettingsError, match="cannot choose a path"):
        calibrated_path({})


# --- content of the file ----------------------------------------------------------------------------------------


def test_a_file_may_have_all_keys() -> None:
    text = """
        path = "dma"
        programs = 8
        store_bandwidth = "20GB/s"
        load_bandwidth = "1.5GiB"
        queue_limit = "250ms"
        chunk = "16 MiB"
        depth = 3
        reserve_timeout = 2
        staging = 1048576
        [stores]
        kernel_below = "16KiB"
        staged_below = "1M"
        [loads]
        kernel_below = 0
        staged_below = 4096
    """
    assert read_settings(text, "") == CopySettings(
        path="dma",
        programs=8,
        store_bandwidth=20 * 10**9,
        load_bandwidth=3 << 29,
        queue_limit=0.25,
        chunk=16 * MIB,
        depth=3,
        reserve_timeout=2.0,
        staging=MIB,
        stores=Thresholds(16 * KIB, MIB),
        loads=Thresholds(0, 4096),
    )


WRONG = {
    "chunks": ["chunks = 1"],
    "kernel_below": ["kernel_below = 1", "[stores]\nkernel_below = 65536", "[loads]\nkernel_below = 2020-01-01"],
    "store": ["[store]\nkernel_below = 1"],
    "staged_bellow": ['[loads]\nstaged_bellow = "1K"'],
    "stores": ["stores = 1", "[stores]\nkernel_below = 65536"],
    "path": ['path = "dmaa"', "path = [1]"],
    "programs": ['programs = "8"'],
    "depth": ["depth = true", "depth = 0"],
    "chunk = ": ['chunk = "64MB/s"', "chunk = -1"],
    "staging = ": ["staging = 9223372036854775808"],
    "load_bandwidth = ": ['load_bandwidth = "fast"'],
    "queue_limit = nan": ["queue_limit = nan"],
    "reserve_timeout = 0": ["reserve_timeout = 0"],
    "end of document": ["path = "],
}


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts in WRONG.items() for text in texts])
def test_errors_name_the_file_and_the_key(key: str, text: str) -> None:
    message = refused(text)
    assert message.startswith("/x/copy.toml: ") and key in message


@given(st.integers(0, 2**63 - 1))
def test_bandwidths_are_sizes_with_or_without_a_suffix(nbytes: int) -> None:
    text = spell_size(nbytes)
    settings = read_settings(f'store_bandwidth = "{text}"\nload_bandwidth = "{text}/s"', "")
    assert (settings.store_bandwidth, settings.load_bandwidth) == (nbytes, nbytes)
