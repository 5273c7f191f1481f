"""Death at every named point, in every role: the others go on, nothing is lost, and all memory comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.control import Action
from sweep.operation import Operation
from sweep.sweeping import Stage, stage, sweep
from sweep.table import OPERATIONS


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("sweep")) as made:
        yield made


@pytest.mark.parametrize("kind", OPERATIONS)
def test_death_at_every_point(on: Stage, kind: type[Operation], tmp_path: Path) -> None:
    assert sweep(on, kind, Action.KILL, tmp_path).uncrossed == []
