"""A standstill at every named point, in every role: nobody waits longer than he said, and then all is well."""

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
def test_standstill_at_every_point(on: Stage, kind: type[Operation], tmp_path: Path) -> None:
    assert sweep(on, kind, Action.STOP, tmp_path).uncrossed == []
