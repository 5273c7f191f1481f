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

from .report import Report
from .round import Round
from .scene import SCENES, Scene
from .show import shown
from .tally import Tally

_VIOLATED: Final = 1
_ROUND_S: Final = 30.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The command line. seconds: about so long; round: of death in each round."""

    seconds: float
    round: float
    seed: int
    scenes: tuple[Scene, ...]
    report: Path


@click.command()
@click.option("--minutes", type=float, default=18.0, help="How long, about; each scene has its turn at least once.")
@click.option("--round", "round_", type=float, default=_ROUND_S, help="Seconds of death in a round.")
@click.option("--seed", type=int, default=None, help="Chance that can be had again.")
@click.option("--scene", "names", multiple=True, type=click.Choice([scene.name for scene in SCENES]))
@click.option("--report", type=click.Path(path_type=Path), default=Path("build/crash"), help="Folder of the report.")
def main(minutes: float, round_: float, seed: int | None, names: tuple[str, ...], report: Path) -> None:
    """Kill engines, daemons and disk workers at random moments, and see whether every promise is kept."""
    logging.getLogger("pagetier.client").disabled = True
    scenes = tuple(scene for scene in SCENES if scene.name in names or not names)
    chosen = secrets.randbits(32) if seed is None else seed
    wanted = Wanted(seconds=60 * minutes, round=round_, seed=chosen, scenes=scenes, report=report)
    sys.stderr.write(f"seed {wanted.seed}\n")
    signal.signal(signal.SIGTERM, _leave)
    gc.freeze()
    sys.exit(_VIOLATED if storm(wanted).violations else 0)


def _leave(number: int, frame: FrameType | None) -> None:
    """A SIGTERM ends this process as Ctrl-C does: with its children and what they have in shared memory."""
    raise SystemExit(128 + number)


def storm(wanted: Wanted) -> Report:
    """Round after round, until a promise was broken in one; the report is written anew after each."""
    tally, kept = Tally(), list[Path]()
    with shown(wanted.seconds) as show:
        for number, scene in enumerate(_scenes(wanted)):
            done = _round(scene, number, wanted, kept, partial(show, scene.name, tally))
            tally.add(done)
            _write(wanted, tally, kept)
            if kept:
                break
    report = _write(wanted, tally, kept)
    sys.stderr.write(report.markdown())
    return report


def _scenes(wanted: Wanted) -> Iterator[Scene]:
    """Each in turn, once at least, until the time is over."""
    ends = time.monotonic() + wanted.seconds
    yield from wanted.scenes
    for scene in cycle(wanted.scenes):
        if time.monotonic() >= ends:
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


def _write(wanted: Wanted, tally: Tally, kept: list[Path]) -> Report:
    report = Report.of(wanted.seed, tally, kept)
    wanted.report.mkdir(parents=True, exist_ok=True)
    (wanted.report / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    (wanted.report / "report.md").write_text(report.markdown())
    return report


if __name__ == "__main__":
    main()
