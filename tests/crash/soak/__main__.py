"""Runs `make soak`: a long run, its report and its chart. Exits with 1 if anything failed, grew or slowed down."""

from __future__ import annotations

import gc
import logging
import secrets
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import click
import msgspec

from chaos.cleanup import sweep
from chaos.progress_line import shown
from chaos.round_counts import Tally
from measure import machine
from soak.chart_panels import picture
from soak.plan import Plan
from soak.report import Measured, Report, report_of
from soak.report_tables import markdown
from soak.soak_run import Soak

_FAILED: Final = 1
_JOURNALS: Final = Path("build/soak")
_NOTHING: Final = Tally()


@click.command()
@click.option("--minutes", type=float, default=90.0, help="Duration of the measurement, after the warm-up.")
@click.option("--seed", type=int, default=None, help="Seed of a repeatable plan of deaths.")
@click.option("--report", type=click.Path(path_type=Path), default=Path("bench/results"), help="Folder of the report.")
@click.option("--churn", is_flag=True, help="Keep one daemon all the time; clients attach and detach quickly.")
@click.option("--beside", default="", help="Other load on the machine, for the report.")
def main(minutes: float, seed: int | None, report: Path, churn: bool, beside: str) -> None:
    """Kill engines, daemons and disk workers for a long time, and check that nothing fails, grows or slows down."""
    logging.getLogger("pagetier.client").disabled = True
    chosen = secrets.randbits(32) if seed is None else seed
    sys.stderr.write(f"seed {chosen}\n")
    sweep()
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()
    plan = Plan.of(60 * minutes, chosen)
    outcome = soak(plan.churning() if churn else plan, report, beside)
    sys.exit(_FAILED if outcome.failed else 0)


def soak(plan: Plan, folder: Path, beside: str) -> Report:
    """Runs a soak, writes its report and returns it."""
    with Soak(plan) as here, shown(plan.seconds + plan.warm) as show:
        here.run(lambda tally: show("soak", _NOTHING, tally))
        for journals in here.kept:
            shutil.copytree(journals, _JOURNALS / f"{plan.seed}-{journals.name}", dirs_exist_ok=True)
        readings = here.measurements.readings()
        report = report_of(
            Measured(plan, here.tally, readings, here.measurements.windows(), here.warm), machine(), beside
        )
    folder.mkdir(parents=True, exist_ok=True)
    name = f"soak-{plan.seconds / 60:.3g}-minutes"
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    (folder / f"{name}.svg").write_text(picture(report, readings))
    (folder / f"{name}.md").write_text(markdown(report, f"{name}.svg"))
    sys.stderr.write(markdown(report, f"{name}.svg"))
    return report


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends this process on SIGTERM as Ctrl-C does: with its children and their shared memory."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
