"""The commands behind `make crash`, `make soak` and `make load`. They exit with 1 if a promise was broken."""

from __future__ import annotations

import gc
import logging
import secrets
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click
import msgspec

from eventually import Stopwatch
from measure import machine
from pagetier.shm._core import SLOTS
from simulator.fleet_round import FleetRound
from simulator.leftovers import sweep
from simulator.load import Load
from simulator.report import Report
from simulator.scenes import SCENES, load_scene
from simulator.simulation import Round, Simulation
from simulator.soak import Plan, Soak
from simulator.tally import Tally

_VIOLATED: Final = 1
_ROUND_S: Final = 30.0
_LINE_EVERY_S: Final = 30.0


class Options(msgspec.Struct, frozen=True):
    """The options of all commands: the seed, and the folder of the report."""

    seed: int
    folder: Path | None

    @property
    def journals(self) -> Path:
        """The folder of journals of broken promises."""
        return self.folder or Path("build/crash")

    def report(self, title: str) -> Report:
        """Returns an empty report."""
        return Report(title, self.seed, machine())

    def end(self, report: Report, folder: str, name: str) -> NoReturn:
        """Writes and shows a report, by default in this folder, and exits."""
        report.write(self.folder or Path(folder), name)
        sys.stderr.write(report.markdown())
        sys.exit(_VIOLATED if report.violations else 0)


@click.group()
@click.option("--seed", type=int, default=lambda: secrets.randbits(32), help="Seed of a repeatable plan of events.")
@click.option("--report", type=click.Path(path_type=Path), default=None, help="Folder of the report.")
@click.pass_context
def main(context: click.Context, seed: int, report: Path | None) -> None:
    """Run engines, daemons and disk workers, and check that every promise is kept."""
    context.obj = Options(seed, report)
    logging.getLogger("pagetier.client").disabled = True
    sys.stderr.write(f"seed {seed}\n")
    for name in sweep():
        sys.stderr.write(f"removed {name}, which an earlier run left behind\n")
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends this process on SIGTERM as Ctrl-C does: with its children and their shared memory."""
    raise SystemExit(128 + number)


@main.command()
@click.option("--minutes", type=float, default=18.0, help="Approximate duration; each scene runs at least once.")
@click.option("--round", "round_", type=float, default=None, help="Seconds of random deaths in a round.")
@click.option("--scene", "names", multiple=True, type=click.Choice([scene.name for scene in SCENES]))
@click.option("--rounds", type=int, default=0, help="Minimum of rounds before the run ends.")
@click.option("--engine-deaths", type=int, default=0, help="Minimum of engine deaths before the run ends.")
@click.option("--daemon-deaths", type=int, default=0, help="Minimum of daemon deaths before the run ends.")
@click.option("--evictions", type=int, default=0, help="Minimum of pages evicted from memory before the run ends.")
@click.option("--disk-reads", type=int, default=0, help="Minimum of pages read from disk before the run ends.")
@click.option("--fleet-reads", type=int, default=0, help="Minimum of pages read from a fleet before the run ends.")
@click.pass_obj
def crash(options: Options, /, minutes: float, round_: float | None, names: tuple[str, ...], **enough: int) -> None:
    """Kill engines, daemons and disk workers at random moments.

    On a busy machine a round takes longer, so that engines serve as many requests between two deaths. The run ends
    with the first round in which a promise was broken.
    """
    report = options.report("Random death")
    watch, required = Stopwatch(), Counter(enough)
    scenes = [scene for scene in SCENES if scene.name in names or not names]
    seconds = min(_ROUND_S, 60 * minutes / len(scenes)) if round_ is None else round_
    for number, scene in enumerate(cycle(scenes)):
        is_over = number >= len(scenes) and watch.seconds >= 60 * minutes
        if report.violations or (is_over and required <= report.tally.work):
            break
        kind = FleetRound if scene.fleet else Round
        with kind(scene, seconds, options.seed + number, _lines(scene.name)) as here:
            _run(here, report, options.journals)
            if isinstance(here, FleetRound):
                report.results = report.results.with_fleet(here.results())
    options.end(report, "build/crash", "report")


@main.command()
@click.option("--minutes", type=float, default=90.0, help="Duration of the measurement, after the warm-up.")
@click.option("--churn", is_flag=True, help="Keep one daemon all the time; clients attach and detach quickly.")
@click.pass_obj
def soak(options: Options, minutes: float, churn: bool) -> None:
    """Kill engines, daemons and disk workers for a long time, and check that nothing fails, grows or slows down."""
    plan = Plan.of(60 * minutes)
    report = options.report(f"A soak of {minutes:.1f} minutes")
    with Soak(plan.churning() if churn else plan, options.seed, _lines("soak")) as here:
        _run(here, report, options.journals)
        report.results = here.measured().results(options.seed)
    options.end(report, "bench/results", f"soak-{minutes:.3g}-minutes")


@main.command()
@click.option("--engines", type=int, default=SLOTS, help="Attached processes; the default is the number of slots.")
@click.option("--seconds", type=float, default=30.0, help="Duration of the measurement, after all engines have begun.")
@click.option("--requests", type=int, default=30, help="Minimum of requests of the mean engine before the run ends.")
@click.option("--nice", type=int, default=0, help="Nice value of the engines; 10 leaves other processes their share.")
@click.pass_obj
def load(options: Options, engines: int, seconds: float, requests: int, nice: int) -> None:
    """Store and load with many engines, and check that no store that fits is rejected and no engine starves."""
    report = options.report(f"{engines} engines")
    with Load(load_scene(engines, nice), seconds, options.seed, _lines("load"), requests=requests) as here:
        _run(here, report, options.journals)
        report.results = here.results()
    options.end(report, "build/load", f"load-{engines}-engines")


def _run(simulation: Simulation | FleetRound, report: Report, journals: Path) -> None:
    """Runs a simulation, adds its counts to the report, and keeps its journals here if a promise was broken."""
    name, drawn = simulation.scene.name, f"evict.policy = {simulation.scene.policy}"
    drawn += f", disk devices: {simulation.scene.devices}" if simulation.scene.disk else ""
    sys.stderr.write(f"{name}: seed {simulation.seed}, {drawn}\n")
    done = simulation.run()
    report.scenes.setdefault(name, Tally()).add(done)
    if done.violations:
        kept = journals / f"{name.replace(', ', '-')}-{simulation.seed}"
        shutil.rmtree(kept, ignore_errors=True)
        simulation.keep_journals(kept)
        report.journals.append(str(kept))


def _lines(scene: str) -> Callable[[Tally], None]:
    """Returns a function that writes a line of progress every 30 seconds."""
    watch, last = Stopwatch(), 0.0

    def show(tally: Tally) -> None:
        nonlocal last
        if watch.seconds >= last + _LINE_EVERY_S:
            last = watch.seconds
            sys.stderr.write(f"{scene}, {last:.0f} s: {tally}\n")

    return show


if __name__ == "__main__":
    main()
