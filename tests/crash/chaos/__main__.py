"""`make crash`: rounds in all scenes for as long as asked, and a report; exit code 1 where a promise was broken."""

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


class Enough(msgspec.Struct, frozen=True):
    """What must have happened, in all scenes together, before a storm may end: on a busy machine it takes longer."""

    engine_deaths: int = 0
    daemon_deaths: int = 0
    disk_reads: int = 0

    def seen_in(self, tally: Tally) -> bool:
        """Whether it has."""
        deaths = tally.engine_deaths >= self.engine_deaths and tally.daemon_deaths >= self.daemon_deaths
        return deaths and tally.pages["disk_read"] >= self.disk_reads


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. seconds: about so long; round: of death in each round."""

    seconds: float
    round: float
    enough: Enough
    seed: int
    scenes: tuple[Scene, ...]
    report: Path


@click.command()
@click.option("--minutes", type=float, default=18.0, help="How long, about; each scene has its turn at least once.")
@click.option("--round", "round_", type=float, default=_ROUND_S, help="Seconds of death in a round.")
@click.option("--seed", type=int, default=None, help="Chance that can be had again.")
@click.option("--scene", "names", multiple=True, type=click.Choice([scene.name for scene in SCENES]))
@click.option("--engine-deaths", type=int, default=0, help="It goes on until there were so many.")
@click.option("--daemon-deaths", type=int, default=0, help="It goes on until there were so many.")
@click.option("--disk-reads", type=int, default=0, help="It goes on until so many pages were read from disk.")
@click.option("--report", type=click.Path(path_type=Path), default=Path("build/crash"), help="Folder of the report.")
def main(minutes: float, round_: float, seed: int | None, names: tuple[str, ...], report: Path, **enough: int) -> None:
    """Kill engines, daemons and disk workers at random moments, and see whether every promise is kept."""
    logging.getLogger("pagetier.client").disabled = True
    scenes = tuple(scene for scene in SCENES if scene.name in names or not names)
    chosen = secrets.randbits(32) if seed is None else seed
    until = Enough(**enough)
    wanted = Wanted(seconds=60 * minutes, round=round_, enough=until, seed=chosen, scenes=scenes, report=report)
    sys.stderr.write(f"seed {wanted.seed}\n")
    for name in sweep():
        sys.stderr.write(f"swept {name}, which an earlier storm left\n")
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()
    sys.exit(_VIOLATED if storm(wanted).violations else 0)


def _leave(number: int, frame: FrameType | None) -> None:
    """A SIGTERM ends this process as Ctrl-C does: with its children and what they have in shared memory."""
    raise SystemExit(128 + number)


class Log:
    """What happened so far, in all and by scene; and the folders of journals that were kept."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.kept: list[Path] = []
        self._scenes: dict[str, Tally] = {}

    def add(self, scene: Scene, done: Tally) -> None:
        """One more round."""
        self.tally.add(done)
        self._scenes.setdefault(scene.name, Tally()).add(done)

    def report(self, seed: int) -> Report:
        """Of all that."""
        return Report.of(seed, self.tally, self._scenes, self.kept)


def storm(wanted: Wanted) -> Report:
    """Round after round, until a promise was broken in one; the report is written anew after each."""
    log = Log()
    report = log.report(wanted.seed)
    with shown(wanted.seconds) as show:
        for number, scene in enumerate(_scenes(wanted, log.tally)):
            done = _round(scene, number, wanted, log.kept, partial(show, scene.name, log.tally))
            log.add(scene, done)
            report = log.report(wanted.seed)
            _write(wanted, report)
            if log.kept:
                break
    sys.stderr.write(report.markdown())
    return report


def _scenes(wanted: Wanted, tally: Tally) -> Iterator[Scene]:
    """Each in turn, once at least, until the time is over and enough has happened."""
    ends = time.monotonic() + wanted.seconds
    yield from wanted.scenes
    for scene in cycle(wanted.scenes):
        if time.monotonic() >= ends and wanted.enough.seen_in(tally):
            return
        yield scene


def _round(scene: Scene, number: int, wanted: Wanted, kept: list[Path], progress: Callable[[Tally], None]) -> Tally:
    """Where promises were broken the journals go to `kept`."""
    with Round(scene, wanted.round, wanted.seed + number) as here:
        done = here.run(progress)
        if done.violations:
            kept.append(_keep(here, wanted.report, number))
    return done


def _keep(round_: Round, folder: Path, number: int) -> Path:
    """The journals of a round in which a promise was broken."""
    kept = folder / f"round-{number}"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(round_.journals, kept)
    return kept


def _write(wanted: Wanted, report: Report) -> None:
    wanted.report.mkdir(parents=True, exist_ok=True)
    (wanted.report / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    (wanted.report / "report.md").write_text(report.markdown())


if __name__ == "__main__":
    main()
