"""The work of `pagetier-bench calibrate`: measures, chooses thresholds, prints and writes them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pagetier.client.cli.calibrate.thresholds import ALWAYS, COPY_PATHS, Speed, path_of, thresholds_of
from pagetier.kernels.config.copy_settings import CopySettings, Thresholds
from pagetier.kernels.config.settings_file import SettingsError, calibrated_path, load_settings
from pagetier.kernels.device import DeviceError
from pagetier.shm.exit_codes import Exit
from pagetier.shm.units import spell_size

if TYPE_CHECKING:
    from pagetier.client.cli.calibrate.measure import Measured


def show(measured: Measured, chosen: dict[str, Thresholds]) -> None:
    """Prints tables of the speeds in GB/s by length of run and copy path, with the path chosen for each length."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for direction, speeds in measured.speeds.items():
        title = f"{direction}, {measured.device}: one plain copy {measured.plain[direction]:.1f} GB/s"
        table = Table("run", *COPY_PATHS, "chosen", title=title)
        for row in _rows(speeds, chosen[direction]):
            table.add_row(*row)
        console.print(table)
        console.print(_sentence(chosen[direction]), soft_wrap=True)


def _rows(speeds: list[Speed], thresholds: Thresholds) -> list[list[str]]:
    by_place = {(speed.run_bytes, speed.path): f"{speed.gb_per_s:.1f}" for speed in speeds}
    lengths = sorted({speed.run_bytes for speed in speeds})
    return [
        [spell_size(nbytes), *(by_place.get((nbytes, path), "") for path in COPY_PATHS), path_of(thresholds, nbytes)]
        for nbytes in lengths
    ]


def _sentence(thresholds: Thresholds) -> str:
    kernel, staged = thresholds.kernel_below, thresholds.staged_below
    parts = [f"kernel below {_length(kernel)}"] if kernel else []
    parts += [f"staged below {_length(staged)}"] if staged > kernel else []
    return ", ".join([*parts, "DMA for the rest"] if staged < ALWAYS else parts)


def _length(nbytes: int) -> str:
    return "any length" if nbytes >= ALWAYS else spell_size(nbytes)


_HEADER: Final = "# Written by pagetier-bench calibrate"


class CalibrateArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The command line.

    Attributes:
        device: The index of the GPU.
        write: The file for the thresholds; None for the default one.
        dry_run: Whether to measure without writing.
        json: Whether to print JSON instead of tables.
    """

    device: int
    write: Path | None
    dry_run: bool
    json: bool


def main(arguments: CalibrateArguments) -> int:
    """Calibrates, prints the result and returns the exit code."""
    try:
        path = None if arguments.dry_run else _replaceable(arguments.write or calibrated_path())
        measured = _measured(arguments.device, load_settings())
        chosen = {direction: thresholds_of(speeds) for direction, speeds in measured.speeds.items()}
        _print_result(arguments, measured, chosen)
        if path is not None:
            write(path, chosen, measured.device)
    except (SettingsError, DeviceError, ValueError) as error:
        sys.stderr.write(f"pagetier-bench calibrate: {' '.join(str(error).split())}\n")
        return Exit.WRONG
    return Exit.OK


def _replaceable(path: Path) -> Path:
    """Returns the path. Raises SettingsError if there is a file that this command did not write."""
    try:
        if path.read_text(errors="replace").startswith(_HEADER):
            return path
    except FileNotFoundError:
        return path
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from error
    raise SettingsError(f"{path}: not written by pagetier-bench calibrate, so it is not replaced")


def _measured(device: int, settings: CopySettings) -> Measured:
    try:
        from pagetier.client.cli.calibrate.measure import measure_gpu
    except ImportError as error:
        raise DeviceError(f'cannot import torch, install "pagetier[gpu]": {error}') from error
    return measure_gpu(device, settings)


def _print_result(arguments: CalibrateArguments, measured: Measured, chosen: dict[str, Thresholds]) -> None:
    if arguments.json:
        result = msgspec.to_builtins(measured) | {"thresholds": msgspec.to_builtins(chosen)}
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    else:
        show(measured, chosen)


def write(path: Path, chosen: dict[str, Thresholds], device: str) -> None:
    """Replaces the file by one with these thresholds, and reports whether they are in effect.

    Raises:
        SettingsError: The file cannot be written.
    """
    today = datetime.now(UTC).date().isoformat()
    text = f"{_HEADER} on {' '.join(device.split())}, {today}; tables of copy.toml take precedence\n"
    text += _table("stores", chosen["store"]) + _table("loads", chosen["load"])
    beside = path.with_name(f"{path.name}.new")  # an engine that starts now must read all of a file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text)
        beside.replace(path)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be written: {error.strerror}") from error
    sys.stderr.write(f"pagetier-bench calibrate: thresholds written to {path}{_effect(chosen)}\n")


def _table(name: str, thresholds: Thresholds) -> str:
    sizes = msgspec.structs.asdict(thresholds).items()
    return "\n".join([f"\n[{name}]", *(f'{key} = "{spell_size(nbytes)}"' for key, nbytes in sizes), ""])


def _effect(chosen: dict[str, Thresholds]) -> str:
    now = load_settings()
    if (now.stores, now.loads) == (chosen["store"], chosen["load"]):
        return "; delete the file to use the defaults again"
    return ", but other ones are in effect: copy.toml has its own, or engines do not read this path"
