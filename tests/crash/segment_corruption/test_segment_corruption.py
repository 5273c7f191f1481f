"""Tests segments damaged between two daemons: exact bytes or a miss, no crash, no endless loop, and a sound end.

SWEEP=all runs over 2,000 injuries in 500 lives. The bytes of pages are not damaged: in memory they have no checksum.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pagetier.shm.exit_codes import Exit
from seeded_random import chance
from segment_corruption.__main__ import Trial
from segment_corruption.lifecycles import BROKE

_FOLDERS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "harness")]
_CHUNKS, _LIVES, _EACH = (10, 51, 5) if os.environ.get("SWEEP") == "all" else (1, 9, 5)


def trials(seed: int, lives: int, each: int) -> Iterator[Trial]:
    command = [sys.executable, "-m", "segment_corruption", str(seed), str(lives), str(each)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(_FOLDERS), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True)
    yield from (msgspec.json.decode(line, type=Trial) for line in done.stdout.splitlines())


def complaint(trial: Trial) -> str:
    """Returns the broken promise, or ""."""
    if trial.late or trial.code == BROKE or "Traceback" in trial.log:
        return trial.late or f"the daemon ended with code {trial.code}"
    if trial.code is not None:
        refused = trial.code == Exit.UNFIT and "--fresh discards what is in them" in trial.log
        return "" if refused else f"the daemon ended with code {trial.code}"
    seen = trial.seen
    if seen.wrong or seen.findings:
        return "; ".join(seen.wrong + seen.findings)
    return "" if seen.attached and seen.stored else "the daemon does not serve"


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_exact_bytes_or_a_miss(chunk: int) -> None:
    seed = int(chance().integers(1 << 31))
    whole, *damaged = trials(seed, _LIVES, _EACH)
    assert not complaint(whole), whole
    assert whole.seen.hits > 100 and not whole.seen.hits + whole.seen.misses < 180, "the test needs more pages"
    wrong = {complaint(trial): trial for trial in damaged if complaint(trial)}
    assert not wrong, (seed, wrong)
    assert any(trial.seen.hits < whole.seen.hits for trial in damaged), "nothing was damaged"


def test_the_judgement_finds_each_broken_promise() -> None:
    """Proves that the judgement detects each broken promise."""
    (whole,) = trials(1, 1, 0)
    for broken in (
        {"late": "an engine hangs"},
        {"code": -11},
        {"log": "Traceback (most recent call last)"},
        {"seen": msgspec.structs.replace(whole.seen, wrong=["page 1"])},
        {"seen": msgspec.structs.replace(whole.seen, findings=["frame 1 is lost"])},
        {"seen": msgspec.structs.replace(whole.seen, stored=0)},
    ):
        assert complaint(msgspec.structs.replace(whole, **broken)), broken
    assert not complaint(whole)
