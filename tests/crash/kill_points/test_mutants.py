"""Proves that a sweep can fail: it must find deliberate bugs in the core, each in the named case."""

from __future__ import annotations

from pathlib import Path

import pytest

from kill_points.cases import Case, run
from kill_points.control import Action
from kill_points.instrumented_build import HERE
from kill_points.operation import Operation, Role
from kill_points.operations import Load, Store, StoreByRanks, StorePart
from kill_points.scene import Scene
from kill_points.sweep import stage

# On a busy machine the other ranks must have reached the same place before the dead one is reaped.
_SLOW = ("--store-quarantine", "0.5s")
MISTAKES = [
    (HERE / "mutants" / "pins-of-the-dead-stay.patch", Load, "match.stamped", "pinned by slots that are not taken"),
    (HERE / "mutants" / "parts-of-the-dead-stay.patch", Store, "copy.piece", "was not released|which is not taken"),
    (HERE / "mutants" / "finished-parts-of-the-dead-stay.patch", StorePart, "part.gone", "was not released"),
    (HERE / "mutants" / "one-part-is-enough.patch", StoreByRanks, "copy.piece", "a page has wrong content"),
]


@pytest.mark.parametrize(("mutant", "kind", "point", "what"), MISTAKES, ids=[one[0].stem for one in MISTAKES])
def test_a_sweep_finds_bugs_in_the_core(
    mutant: Path, kind: type[Operation], point: str, what: str, tmp_path: Path
) -> None:
    with (
        stage(tmp_path, mutant) as on,
        pytest.raises(AssertionError, match=what),
        Scene(on.fork_client, on.control, tmp_path, (*kind.flags(tmp_path), *_SLOW)) as scene,
    ):
        run(scene, kind, Case(Role.ENGINE, point, Action.KILL))
