"""Sweeps faults over the disk calls of the worker: engines continue, nothing is lost, and the disk works again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disk_faults.operations import FEW, SCENARIO
from disk_faults.sweep import EVERYTHING, GatedStage, Part, gated_stage, sweep
from kill_points.disk_lifecycles import StartWithSmallerDisk
from kill_points.operation import Operation

_FEW = 2
_PARTS = 8


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatedStage]:
    with gated_stage(tmp_path_factory.mktemp("faults")) as made:
        yield made


def parts_of(kind: type[Operation]) -> list[Part]:
    """Returns the parts of a sweep: all, for several parallel tests, or some faults, others for each operation."""
    if not EVERYTHING:
        return [Part(_FEW * SCENARIO.index(kind), 1, _FEW)] if kind in FEW else []
    count = 8 * _PARTS if kind is StartWithSmallerDisk else _PARTS
    return [Part(number, count, 0) for number in range(count)]


CASES = [
    pytest.param(kind, part, id=f"{kind.__name__}-{at}") for kind in SCENARIO for at, part in enumerate(parts_of(kind))
]


@pytest.mark.parametrize(("kind", "part"), CASES)
def test_disk_calls_that_go_wrong_break_no_promise(
    on: GatedStage, kind: type[Operation], part: Part, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Tests the faults of a part.

    The number of calls of a batch varies, so a late one may not be made; on a machine with more load than cores, less
    than half of a part's faults were reached.
    """
    swept = sweep(on, kind, tmp_path, part)
    record_property("swept", (swept.cases, swept.unstruck))
    assert 4 * swept.struck >= swept.cases
