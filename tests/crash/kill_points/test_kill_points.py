"""Kills or stops a process at every failpoint, in each role: others continue, nothing is lost, memory is reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kill_points.control import Action
from kill_points.failpoint_table import OPERATIONS
from kill_points.operation import Operation
from kill_points.sweep import Stage, stage, sweep


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_death_or_stop_at_any_failpoint_breaks_no_promise(
    on: Stage, kind: type[Operation], action: Action, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    swept = sweep(on, kind, action, tmp_path)
    record_property("swept", [swept.cases, [f"{kind.__name__}: {case}" for case in swept.by_chance]])
    assert swept.uncrossed == []
