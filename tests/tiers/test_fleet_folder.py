"""Tests of a fleet in a folder, and of a store of one's own: python://."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS, OpenedFleet
from pagetier.tiers.worker_protocol import FleetOptions
from tier_pages import outgoings


class TestFolder(StoreConformance):
    """file:///"""

    @pytest.fixture
    def options(self, tmp_path: Path) -> FleetOptions:
        folder = tmp_path / "fleet"
        folder.mkdir()
        return FleetOptions(url=f"file://{folder}", buffers=BUFFERS, timeout_s=20)

    def test_no_unfinished_file_is_left(self, opened: OpenedFleet) -> None:
        opened.store_all(*outgoings(range(3)))
        folder = Path(opened.options.url.removeprefix("file://"))
        assert not list((folder / ".unfinished").iterdir())


class TestPython(StoreConformance):
    """python://module:Class"""

    @pytest.fixture
    def options(self) -> FleetOptions:
        return FleetOptions(url="python://faulty_store:DictStore", buffers=BUFFERS, timeout_s=20)

    @pytest.fixture(autouse=True)
    def empty(self) -> None:
        from faulty_store import DictStore

        DictStore.objects.clear()


class TestOwnMemory(TestPython):
    """A store that returns objects instead of copying them."""

    @pytest.fixture
    def options(self) -> FleetOptions:
        return FleetOptions(url="python://faulty_store:OwnMemoryStore", buffers=BUFFERS, timeout_s=20)
