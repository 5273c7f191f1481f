"""Tests `pagetier-bench calibrate`: the speeds are printed, the thresholds are written, and errors are one line."""

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
from pagetier.client.cli.calibrate.thresholds import COPY_PATHS, thresholds_of
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.config.settings_file import COPY_VARIABLE, load_settings
from pagetier.kernels.device import DeviceError

KIB = 1 << 10

MEASURED = Measured(
    "Some GPU",
    {"store": 50.0, "load": 51.0},
    {
        "store": speeds({"kernel": [45.0] * 11, "staged": [5.0] * 11, "dma": saturating(50, 4 * KIB)}),
        "load": speeds({path: [50.0] * 11 for path in COPY_PATHS}),
    },
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the settings of a user who has none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (COPY_VARIABLE, "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / ".config/pagetier"


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
    path = place / "copy.calibrated.toml"
    assert result.stderr.endswith(f"thresholds written to {path}; delete the file to use the defaults again\n")
    settings = load_settings()
    assert settings.loads == Thresholds(0, 0)
    assert settings.stores == thresholds_of(MEASURED.speeds["store"])
    assert path.read_text().startswith("# Written by pagetier-bench calibrate on Some GPU, 20")
    assert run().exit_code == 0, "its own file is replaced"
    path.unlink()
    assert [*place.iterdir()] == []
    assert used_settings == [CopySettings(), settings]


def test_what_the_user_wrote_is_used_and_kept(place: Path, used_settings: list[CopySettings]) -> None:
    place.mkdir(parents=True)
    own = place / "copy.toml"
    own.write_text("programs = 8  # ours\n[loads]\nstaged_below = 4096\nkernel_below = 0\n")
    result = run()
    assert result.exit_code == 0
    assert "but other ones are in effect: copy.toml has its own" in result.stderr
    assert used_settings[0].programs == load_settings().programs == 8
    assert load_settings().loads == Thresholds(0, 4096)
    assert load_settings().stores == thresholds_of(MEASURED.speeds["store"])
    before = own.read_text()
    assert "not written by pagetier-bench calibrate, so it is not replaced" in failed("--write", str(own))
    assert own.read_text() == before


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
    assert result.stderr.startswith("pagetier-bench calibrate: ")
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
    place.mkdir(parents=True)
    own = place / "copy.toml"
    own.write_text("chunks = 1\n")
    assert f"{own}: Object contains unknown field `chunks`" in failed()
    assert "cannot be written: Not a directory" in failed("--write", str(own / "below.toml"))
    assert not used_settings, "nothing was measured"
    assert [*place.iterdir()] == [own]
    monkeypatch.delenv("HOME")
    assert "cannot choose a path" in failed()


def test_a_gpu_that_fails_writes_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(index: int, settings: CopySettings) -> Measured:
        raise DeviceError("cuda:0: out of\nmemory")

    monkeypatch.setattr("pagetier.client.cli.calibrate.measure.measure_gpu", measure)
    assert "cuda:0: out of memory" in failed()
    assert not place.exists()
