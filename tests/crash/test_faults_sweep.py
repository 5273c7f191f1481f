"""Calls to the disk that end the worker, fail, do half or hang: engines go on, nothing is lost, it works again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from faults.scenario import SCENARIO
from faults.sweeping import Theatre, sweep, theatre
from sweep.operation import Operation


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    with theatre(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize("kind", SCENARIO, ids=lambda kind: kind.__name__)
def test_calls_that_go_wrong(
    on: Theatre, kind: type[Operation], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """How many calls a batch takes is a matter of chance, so a late one may not come; most do."""
    swept = sweep(on, kind, tmp_path, shift=3 * SCENARIO.index(kind))
    record_property("swept", (swept.cases, swept.unstruck))
    assert 2 * swept.struck > swept.cases
