"""The work of `pagetier calibrate`: measures, decides, prints, writes."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pagetier.client.cli.calibrate.thresholds import ALWAYS, ORDER, Speed, thresholds_of, way_of
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.config.file import COPY_VARIABLE, SettingsError, default_place, load_settings, write_settings
from pagetier.kernels.config.units import spell_size
from pagetier.kernels.device import DeviceError

if TYPE_CHECKING:
    from pagetier.client.cli.calibrate.measure import Measured


def show(measured: Measured, chosen: dict[str, Thresholds]) -> None:
    """The tables on stdout, GB/s by length of a run and way, with the way that is taken from now on."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for direction, speeds in measured.speeds.items():
        title = f"{direction}, {measured.device}: one plain copy {measured.plain[direction]:.1f} GB/s"
        table = Table("run", *ORDER, "taken", title=title)
        for row in _rows(speeds, chosen[direction]):
            table.add_row(*row)
        console.print(table)
        console.print(_sentence(chosen[direction]), soft_wrap=True)


def _rows(speeds: list[Speed], thresholds: Thresholds) -> list[list[str]]:
    by_place = {(speed.run_bytes, speed.way): f"{speed.gb_per_s:.1f}" for speed in speeds}
    lengths = sorted({speed.run_bytes for speed in speeds})
    return [
        [spell_size(nbytes), *(by_place.get((nbytes, way), "") for way in ORDER), way_of(thresholds, nbytes)]
        for nbytes in lengths
    ]


def _sentence(thresholds: Thresholds) -> str:
    kernel, staged = thresholds.kernel_below, thresholds.staged_below
    parts = [f"kernel below {_length(kernel)}"] if kernel else []
    parts += [f"staged below {_length(staged)}"] if staged > kernel else []
    return ", ".join([*parts, "DMA for the rest"] if staged < ALWAYS else parts)


def _length(nbytes: int) -> str:
    return "any length" if nbytes >= ALWAYS else spell_size(nbytes)


class CalibrateExit(IntEnum):
    """What the command ends with; click ends it with 2 where it is used wrongly."""

    OK = 0
    WRONG = 1


class CalibrateArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. write: None for the default place."""

    device: int
    write: Path | None
    dry_run: bool
    json: bool


def main(wanted: CalibrateArguments) -> int:
    """Calibrates, prints what came out, returns the exit code."""
    try:
        place = wanted.write or default_place()
        settings = standing(place)
        measured = _measured(wanted.device, settings)
        chosen = {way: thresholds_of(speeds) for way, speeds in measured.speeds.items()}
        _tell(wanted, measured, chosen)
        if not wanted.dry_run:
            _write(place, settings, chosen, measured.device)
    except (SettingsError, DeviceError, ValueError) as error:
        sys.stderr.write(f"pagetier calibrate: {' '.join(str(error).split())}\n")
        return CalibrateExit.WRONG
    return CalibrateExit.OK


def standing(place: Path) -> CopySettings:
    """What is told already: by the file to write to; if there is none yet, by the one that it will take precedence of.

    Raises SettingsError.
    """
    others = {name: value for name, value in os.environ.items() if name != COPY_VARIABLE}
    return load_settings(place) if place.exists() else load_settings(None, others)


def _measured(device: int, settings: CopySettings) -> Measured:
    try:
        from pagetier.client.cli.calibrate.measure import measure_gpu
    except ImportError as error:
        raise DeviceError(f'torch is needed to measure, pip install "pagetier[gpu]": {error}') from error
    return measure_gpu(device, settings)


def _tell(wanted: CalibrateArguments, measured: Measured, chosen: dict[str, Thresholds]) -> None:
    if wanted.json:
        told = msgspec.to_builtins(measured) | {"thresholds": msgspec.to_builtins(chosen)}
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    else:
        show(measured, chosen)


def _write(place: Path, settings: CopySettings, chosen: dict[str, Thresholds], device: str) -> None:
    told = msgspec.structs.replace(settings, stores=chosen["store"], loads=chosen["load"])
    today = datetime.now(UTC).date().isoformat()
    write_settings(place, told, f"measured by pagetier calibrate on {device}, {today}")
    sys.stderr.write(f"pagetier calibrate: thresholds written to {place}\n")
