"""Runs `make crash`: rounds in all scenes for a given time, and a report. Exits with 1 if a promise was broken."""

from __future__ import annotations

import gc
import logging
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Final

import click
import msgspec

from chaos.cleanup import sweep
from chaos.progress_line import shown
from chaos.report import Report
from chaos.round import Round
from chaos.round_counts import Tally
from chaos.scenario import SCENES, Scene

_VIOLATED: Final = 1
_ROUND_S: Final = 30.0


class RequiredCounts(msgspec.Struct, frozen=True):
    """The counts that a run must reach, in all scenes together, before it may end; a busy machine takes longer."""

    engine_deaths: int = 0
    daemon_deaths: int = 0
    disk_reads: int = 0

    def reached_in(self, tally: Tally) -> bool:
        """Returns whether the counts are reached."""
        deaths = tally.engine_deaths >= self.engine_deaths and tally.daemon_deaths >= self.daemon_deaths
        return deaths and tally.pages["disk_read"] >= self.disk_reads


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line.

    Attributes:
        seconds: The approximate duration of the run.
        round: The seconds of random deaths in each round.
        enough: The counts that the run must reach.
        seed: The seed of the planned deaths.
        scenes: The scenes to run.
        report: The folder of the report.
    """

    seconds: float
    round: float
    enough: RequiredCounts
    seed: int
    scenes: tuple[Scene, ...]
    report: Path


@click.command()
@click.option("--minutes", type=float, default=18.0, help="Approximate duration; each scene runs at least once.")
@click.option("--round", "round_", type=float, default=_ROUND_S, help="Seconds of random deaths in a round.")
@click.option("--seed", type=int, default=None, help="Seed of a repeatable plan of deaths.")
@click.option("--scene", "names", multiple=True, type=click.Choice([scene.name for scene in SCENES]))
@click.option("--engine-deaths", type=int, default=0, help="Minimum of engine deaths before the run ends.")
@click.option("--daemon-deaths", type=int, default=0, help="Minimum of daemon deaths before the run ends.")
@click.option("--disk-reads", type=int, default=0, help="Minimum of pages read from disk before the run ends.")
@click.option("--report", type=click.Path(path_type=Path), default=Path("build/crash"), help="Folder of the report.")
def main(minutes: float, round_: float, seed: int | None, names: tuple[str, ...], report: Path, **enough: int) -> None:
    """Kill engines, daemons and disk workers at random moments, and check that every promise is kept."""
    logging.getLogger("pagetier.client").disabled = True
    scenes = tuple(scene for scene in SCENES if scene.name in names or not names)
    chosen = secrets.randbits(32) if seed is None else seed
    until = RequiredCounts(**enough)
    options = Options(seconds=60 * minutes, round=round_, enough=until, seed=chosen, scenes=scenes, report=report)
    sys.stderr.write(f"seed {options.seed}\n")
    for name in sweep():
        sys.stderr.write(f"removed {name}, which an earlier run left behind\n")
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()
    sys.exit(_VIOLATED if run_rounds(options).violations else 0)


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends this process on SIGTERM as Ctrl-C does: with its children and their shared memory."""
    raise SystemExit(128 + number)


class Log:
    """The results so far, in total and by scene, and the folders of journals that were kept."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.kept: list[Path] = []
        self._scenes: dict[str, Tally] = {}

    def add(self, scene: Scene, done: Tally) -> None:
        """Adds the counts of a round."""
        self.tally.add(done)
        self._scenes.setdefault(scene.name, Tally()).add(done)

    def report(self, seed: int) -> Report:
        """Returns the report of all rounds so far."""
        return Report.of(seed, self.tally, self._scenes, self.kept)


def run_rounds(options: Options) -> Report:
    """Runs one round after the other until a promise is broken; rewrites the report after each.

    Returns:
        The last report.
    """
    log = Log()
    report = log.report(options.seed)
    with shown(options.seconds) as show:
        for number, scene in enumerate(_scenes(options, log.tally)):
            done = _round(scene, number, options, log.kept, partial(show, scene.name, log.tally))
            log.add(scene, done)
            report = log.report(options.seed)
            _write(options, report)
            if log.kept:
                break
    sys.stderr.write(report.markdown())
    return report


def _scenes(options: Options, tally: Tally) -> Iterator[Scene]:
    """Yields each scene in turn, at least once, until the time is over and the required counts are reached."""
    ends = time.monotonic() + options.seconds
    yield from options.scenes
    for scene in cycle(options.scenes):
        if time.monotonic() >= ends and options.enough.reached_in(tally):
            return
        yield scene


def _round(scene: Scene, number: int, options: Options, kept: list[Path], progress: Callable[[Tally], None]) -> Tally:
    """Runs a round and returns its counts; if a promise was broken, adds the folder of its journals to `kept`."""
    with Round(scene, options.round, options.seed + number) as here:
        done = here.run(progress)
        if done.violations:
            kept.append(_keep(here, options.report, number))
    return done


def _keep(round_: Round, folder: Path, number: int) -> Path:
    """Copies the journals of a round in which a promise was broken, and returns their folder."""
    kept = folder / f"round-{number}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(round_.journals, kept)
    return kept


def _write(options: Options, report: Report) -> None:
    options.report.mkdir(parents=True, exist_ok=True)
    (options.report / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    (options.report / "report.md").write_text(report.markdown())


if __name__ == "__main__":
    main()
