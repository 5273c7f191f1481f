"""Tests `pagetier calibrate`: the speeds are printed, the thresholds are written, and errors are one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

from fake_speeds import saturating, speeds
from pagetier.client.cli.calibrate import calibrate
from pagetier.client.cli.calibrate.measure import Measured
from pagetier.client.cli.calibrate.thresholds import COPY_WAYS, thresholds_of
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.config.file import COPY_VARIABLE, load_settings
from pagetier.kernels.device import DeviceError

KIB = 1 << 10

MEASURED = Measured(
    "Some GPU",
    {"store": 50.0, "load": 51.0},
    {
        "store": speeds({"kernel": [45.0] * 11, "staged": [5.0] * 11, "dma": saturating(50, 4 * KIB)}),
        "load": speeds({way: [50.0] * 11 for way in COPY_WAYS}),
    },
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "copy.toml"
    monkeypatch.setenv(COPY_VARIABLE, str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return path


@pytest.fixture
def used_settings(monkeypatch: pytest.MonkeyPatch) -> list[CopySettings]:
    """Replaces the measurement of a GPU. Returns the settings with which it was called."""
    seen: list[CopySettings] = []

    def measure(index: int, settings: CopySettings) -> Measured:
        seen.append(settings)
        return MEASURED

    monkeypatch.setattr("pagetier.client.cli.calibrate.measure.measure_gpu", measure)
    return seen


def run(*arguments: str) -> Result:
    return CliRunner().invoke(calibrate, arguments)


def test_thresholds_are_printed_and_written(place: Path, used_settings: list[CopySettings]) -> None:
    result = run()
    assert result.exit_code == 0
    assert "store, Some GPU: one plain copy 50.0 GB/s" in result.stdout
    assert "kernel below 2" in result.stdout
    assert "DMA for the rest" in result.stdout
    assert f"written to {place}" in result.stderr
    settings = load_settings(place)
    assert settings.loads == Thresholds(0, 0)
    assert settings.stores == thresholds_of(MEASURED.speeds["store"])
    assert "# measured by pagetier calibrate on Some GPU, 20" in place.read_text()
    assert used_settings == [CopySettings()]


def test_existing_settings_are_used_and_kept(place: Path, used_settings: list[CopySettings]) -> None:
    place.write_text('programs = 8  # ours\nload_bandwidth = "20GB/s"\n')
    assert run().exit_code == 0
    assert used_settings[0].programs == load_settings(place).programs == 8
    assert "# ours" in place.read_text()


def test_a_new_file_contains_the_settings_of_the_previous_one(
    place: Path, used_settings: list[CopySettings], tmp_path: Path
) -> None:
    own = tmp_path / ".config/pagetier/copy.toml"
    own.parent.mkdir(parents=True)
    own.write_text("depth = 7\n")
    assert run("--write", str(tmp_path / "deep/new.toml")).exit_code == 0
    assert load_settings(tmp_path / "deep/new.toml").depth == 7
    assert not place.exists()
    assert own.read_text() == "depth = 7\n"


def test_a_dry_run_writes_nothing(place: Path, used_settings: list[CopySettings]) -> None:
    result = run("--dry-run")
    assert result.exit_code == 0
    assert "GB/s" in result.stdout
    assert not place.exists()


def test_json_has_speeds_and_thresholds(place: Path, used_settings: list[CopySettings]) -> None:
    result = json.loads(run("--json", "--dry-run").stdout)
    assert result["device"] == "Some GPU"
    assert result["thresholds"]["load"] == {"kernel_below": 0, "staged_below": 0}
    assert result["speeds"]["store"][0] == {"path": "kernel", "run_bytes": 2048, "gb_per_s": 45.0}


def failed(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 1
    assert not result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("pagetier calibrate: ")
    return result.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_is_printed_and_nothing_written(place: Path) -> None:
    assert "no CUDA device" in failed()
    assert "no CUDA device" in failed("--device", "3")
    assert not place.exists()


def test_without_torch_one_line_is_printed_and_nothing_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pagetier.client.cli.calibrate.measure", raising=False)
    monkeypatch.delitem(sys.modules, "pagetier.client.cli.calibrate.measure", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "cannot import torch" in failed()
    assert not place.exists()


def test_an_invalid_or_unwritable_file_is_reported(
    place: Path, used_settings: list[CopySettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write_text("chunks = 1\n")
    assert 'did you mean "chunk"' in failed()
    assert not used_settings
    assert place.read_text() == "chunks = 1\n"
    result = run("--write", str(place / "below.toml"))
    assert result.exit_code == 1
    assert "cannot be" in result.stderr
    for name in ("HOME", COPY_VARIABLE):
        monkeypatch.delenv(name)
    assert "cannot choose a path" in failed()


def test_a_gpu_that_fails_writes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(index: int, settings: CopySettings) -> Measured:
        raise DeviceError("cuda:0: out of\nmemory")

    monkeypatch.setattr("pagetier.client.cli.calibrate.measure.measure_gpu", measure)
    assert "cuda:0: out of memory" in failed()
    assert not place.exists()


def test_invalid_options_are_usage_errors() -> None:
    assert run("--dry-run", "--write", "x").exit_code == 2
    assert run("--device", "-1").exit_code == 2
    assert run("more").exit_code == 2
