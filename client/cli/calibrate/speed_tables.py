"""A calibration for people: a table for each direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pagetier.client.cli.calibrate.thresholds import ALWAYS, ORDER, Speed, way_of
from pagetier.kernels.config.copy_settings import Thresholds
from pagetier.kernels.config.units import spell_size

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
