"""Mooncake's files: a master with a folder has each object there too, and reads that when its nodes are gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from eventually import eventually
from fleet_conformance import FIELDS, KEPT, UNUSED_WITHOUT_KEY, changed
from fleet_pages import OpenedFleet, opened_fleet, with_key
from pagetier.tiers.base import Outgoing, ReadOutcome
from pagetier.tiers.fleet.objects import HEADER_BYTES
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import FRAME, outgoings
from store_servers import mooncake_servers

PAGES = outgoings(range(len(FIELDS) + 5), 3 * FRAME)


class Files(NamedTuple):
    """A fleet whose pages are in Mooncake's files only."""

    opened: OpenedFleet
    folder: Path

    def of(self, page: Outgoing) -> Path:
        """Returns the file of a page."""
        (file,) = self.folder.rglob(f"*{page.key.hex()}")
        return file

    def is_in_files_only(self, page: Outgoing) -> bool:
        replicas = self.opened.store._client.batch_get_replica_desc([self.opened.name(page)])  # type: ignore[attr-defined]
        return all(replica.is_disk_replica() for replica in replicas[self.opened.name(page)])


@pytest.fixture(scope="module", params=["plain", "key"])
def files(
    request: pytest.FixtureRequest, has_mooncake: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Files]:
    folder = tmp_path_factory.mktemp("mooncake")
    (folder / "files").mkdir()
    with mooncake_servers(folder, files=folder / "files") as servers:
        options = FleetOptions(url=servers.url, prefix="files", trusted=True, buffers=8 << 20, timeout_s=20)
        with opened_fleet(options if request.param == "plain" else with_key(options, folder)) as opened:
            opened.store_all(*PAGES)
            made = Files(opened, folder / "files")
            assert eventually(lambda: len([*made.folder.rglob("files_*")]) == len(PAGES))
            servers.node.kill()
            assert eventually(lambda: all(map(made.is_in_files_only, PAGES)))
            yield made


def test_a_page_is_read_from_its_file(files: Files) -> None:
    assert files.opened.outcome(PAGES[-1]) is ReadOutcome.EXACT


@pytest.mark.parametrize(("number", "field"), [*enumerate(FIELDS)])
def test_a_damaged_byte_of_a_file_is_a_miss(files: Files, number: int, field: str) -> None:
    page, opened = PAGES[number], files.opened
    file, is_plain = files.of(page), not opened.options.key_file
    file.write_bytes(changed(file.read_bytes(), FIELDS[field]))
    damaged = opened.fleet.state().damaged
    if field in UNUSED_WITHOUT_KEY and (is_plain or field == "proof"):
        assert opened.outcome(page) is ReadOutcome.EXACT, "the page does not depend on it"
        return
    assert opened.outcome(page) is (ReadOutcome.ABSENT if field in KEPT else ReadOutcome.DAMAGED)
    assert opened.fleet.state().damaged == damaged + (field not in KEPT)


@pytest.mark.parametrize(("number", "length"), [*enumerate([0, HEADER_BYTES, HEADER_BYTES + FRAME], len(FIELDS))])
def test_a_truncated_file_is_a_miss(files: Files, number: int, length: int) -> None:
    page = PAGES[number]
    file = files.of(page)
    file.write_bytes(file.read_bytes()[:length])
    assert files.opened.outcome(page) is not ReadOutcome.EXACT


def test_a_removed_file_is_a_miss(files: Files) -> None:
    files.of(PAGES[-2]).unlink()
    assert files.opened.outcome(PAGES[-2]) is not ReadOutcome.EXACT
