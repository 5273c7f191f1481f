"""Runs `python -m load`: an engine for each slot. Exits with 1 if a promise was broken or an engine starved."""

from __future__ import annotations

import gc
import logging
import secrets
import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from chaos.cleanup import sweep
from load.load_run import Load, Outcome
from load.shared_counters import Column
from measure import machine
from pagetier.shm._core import SLOTS

_FAILED: Final = 1


@click.command()
@click.option("--engines", type=int, default=SLOTS, help="Attached processes; the default is the number of slots.")
@click.option(
    "--seconds", type=float, default=30.0, help="Duration of the measurement, after all engines have started."
)
@click.option("--requests", type=int, default=30, help="Minimum of requests of the mean engine before the run ends.")
@click.option("--nice", type=int, default=0, help="Nice value of the engines; 10 leaves other processes their share.")
@click.option("--seed", type=int, default=None, help="Seed of a repeatable run.")
@click.option("--json", "form", flag_value="json", help="Print an object instead of a table.")
def main(engines: int, seconds: float, requests: int, nice: int, seed: int | None, form: str | None) -> None:
    """Store and load with many engines, and check that no store that fits is rejected and no engine starves."""
    logging.getLogger("pagetier.client").disabled = True
    chosen = secrets.randbits(32) if seed is None else seed
    sys.stderr.write(f"seed {chosen}\n")
    sweep()
    gc.freeze()
    with Load(engines, chosen, nice) as load:
        outcome = load.run(seconds, requests)
    if form:
        output = {"machine": machine(), **msgspec.to_builtins(outcome)}
        sys.stdout.write(msgspec.json.encode(output).decode() + "\n")
    else:
        _show(outcome)
    sys.exit(_FAILED if outcome.failed else 0)


def _show(outcome: Outcome) -> None:
    console = Console()
    table = Table("call", "how many", "p50, ms", "p99, ms", "most, ms", title=f"{outcome.engines} engines")
    for one in outcome.latencies:
        table.add_row(one.call, f"{one.count:,}", f"{one.p50:.3f}", f"{one.p99:.2f}", f"{one.most:.1f}")
    console.print(table)
    for column, pages in ((Column.STORED, outcome.stored), (Column.LOADED, outcome.loaded)):
        console.print(f"pages {column.name.lower()} by a process: {_spread(pages)}")
    console.print(f"{outcome.refused} rejected, {outcome.present} present, {outcome.pending} being stored by others")
    had, waited = outcome.daemon.ran, outcome.daemon.waited
    console.print(f"the daemon had {100 * had:.0f} % of a core and waited for one {100 * waited:.0f} % of the time;")
    console.print(
        f"the engines had {outcome.processes.ran:.2f} cores, and {outcome.processes.waited:.0f} waited for one"
    )
    console.print(f"{outcome.evicted:,} pages were evicted")
    console.print(f"the response to one engine too many: {outcome.refusal or 'none'}")
    for line in (*outcome.wrongs, *map(str, outcome.violations)):
        console.print(f"WRONG: {line}")


def _spread(pages: Sequence[int]) -> str:
    return f"{min(pages):,} to {max(pages):,}, mean {np.mean(pages):,.0f}"


if __name__ == "__main__":
    main()
