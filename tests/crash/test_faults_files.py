"""Files of a disk tier that are cut, replaced or removed while it is open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.changes import CHANGES, Change
from faults.meeting import OnDisk, meet
from sweep.scene import Scene
from sweep.sweeping import Stage, stage


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with stage(tmp_path_factory.mktemp("files")) as made:
        yield made


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_files_that_change_while_they_are_open(on: Stage, change: Change, tmp_path: Path) -> None:
    with Scene(on.nursery, on.control, tmp_path, OnDisk.flags(tmp_path)) as scene:
        meet(scene, change, tmp_path / "disk")
