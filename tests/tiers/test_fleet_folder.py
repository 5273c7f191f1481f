"""Tests of a fleet in a folder, and of a store of one's own: python://."""

from __future__ import annotations

import errno
import os
from array import array
from pathlib import Path

import pytest

from fleet_conformance import StoreConformance
from fleet_pages import BUFFERS, OpenedFleet
from pagetier.shm.page_rows import PAGES_TO_FIND, PageToFind
from pagetier.tiers.base import PageName, TierError
from pagetier.tiers.fleet.object_store import length_and_bytes
from pagetier.tiers.fleet.objects import object_name, object_names
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import OTHER, SPACE, outgoing, outgoings


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

    @pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
    def test_a_file_system_without_hard_links_is_named(
        self, opened: OpenedFleet, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        """link(2): EPERM if the file system does not support hard links."""

        def link(*places: object, **folders: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "link", link)
        (reason,) = opened.fleet.write([], [outgoing(1)]).reasons
        folder = opened.options.url.removeprefix("file://")
        assert reason == f"the file system of {folder} has no hard links: use another one, or another store"
        assert not list((Path(folder) / ".unfinished").iterdir())


class TestPython(StoreConformance):
    """python://module:Class"""

    @pytest.fixture
    def options(self) -> FleetOptions:
        return FleetOptions(url="python://faulty_store:DictStore", buffers=BUFFERS, timeout_s=20)

    @pytest.fixture(autouse=True)
    def empty(self) -> None:
        from faulty_store import DictStore

        DictStore.objects.clear()


@pytest.mark.parametrize("got", [b"bytes", None, memoryview(b"odd")[::2]])
def test_what_a_store_may_not_return_is_a_failure(got: object) -> None:
    with pytest.raises(TierError, match="neither a length nor a memoryview of bytes"):
        length_and_bytes(got, memoryview(bytearray(8)))  # type: ignore[arg-type]


def test_what_a_store_got_is_seen_as_bytes() -> None:
    room = memoryview(bytearray(8))
    numbers = memoryview(array("H", [1, 2]))
    assert length_and_bytes(5, room) == (5, room)
    assert length_and_bytes(numbers, room) == (4, numbers.cast("B"))
    assert length_and_bytes(memoryview(b"longer than that"), room) == (16, room)


class TestOwnMemory(TestPython):
    """A store that returns objects instead of copying them."""

    @pytest.fixture
    def options(self) -> FleetOptions:
        return FleetOptions(url="python://faulty_store:OwnMemoryStore", buffers=BUFFERS, timeout_s=20)


def test_names_of_many_objects_are_those_of_each() -> None:
    pages = [outgoing(number, space=(SPACE, OTHER)[number % 3 == 1]) for number in range(20)]
    rows = PAGES_TO_FIND.pack(PageToFind(page.key, int(page.space is OTHER)) for page in pages)
    names = object_names("pre/fix", rows, [SPACE, OTHER])
    assert names == [object_name("pre/fix", PageName(page.space.digest, page.key)) for page in pages]
    assert object_names("pre/fix", b"", []) == []
