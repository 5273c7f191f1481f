"""The files store finds wrong bytes in its slots and wrong records: each costs one page."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from file_changes import write_at
from files_store import fill, only, opened, slots_of
from pagetier.tiers.base import Outgoing, ReadOutcome
from pagetier.tiers.disk import doubt
from pagetier.tiers.frame_files import FilesStore
from pagetier.tiers.frame_files.records import pack_record
from store_pages import FRAME, keys_in, outcome_of, outcomes, outgoing, outgoings


@pytest.mark.parametrize("harm", ["misplaced", "stale", "torn"])
def test_wrong_bytes_in_a_slot_cost_one_page(files: FilesStore, tmp_path: Path, harm: str) -> None:
    pages = outgoings(range(20))
    files.write([], pages)
    path, slots = tmp_path / "tier" / "0" / "frames.0", slots_of(files, pages[7])
    before = path.read_bytes()
    if harm == "misplaced":
        write_at(path, slots[1] * FRAME, before[slots_of(files, pages[8])[1] * FRAME :][:FRAME])
    elif harm == "stale":
        write_at(path, slots[0] * FRAME, before[slots[0] * FRAME :][:FRAME][::-1])
    else:
        write_at(path, slots[2] * FRAME, bytes(512))
    assert outcome_of(files, pages[7]) is ReadOutcome.DAMAGED
    assert outcome_of(files, pages[7]) is ReadOutcome.ABSENT
    assert outcomes(files, pages[:7] + pages[8:]) == {ReadOutcome.EXACT}
    assert files.state().damaged == 1


def test_a_file_that_was_cut_costs_the_pages_in_the_missing_part(tmp_path: Path) -> None:
    pages = outgoings(range(20))
    with closing(opened(tmp_path)) as tier:
        tier.write([], pages)
    cut = tmp_path / "tier" / "0" / "frames.0"
    os.truncate(cut, 59 * FRAME)
    with closing(opened(tmp_path)) as tier:
        assert tier.state().opened == f"as it was left; 1 page dropped, because {cut} is missing or was truncated"
        assert [outcome_of(tier, page) for page in pages] == [ReadOutcome.EXACT] * 19 + [ReadOutcome.ABSENT]
        assert len(keys_in(tier)) == 19
        assert outcomes(tier, [*pages[:19], *fill(tier, 100)]) == {ReadOutcome.EXACT}


def test_an_opening_names_a_file_that_was_removed_and_the_pages_that_it_had(tmp_path: Path) -> None:
    with closing(opened(tmp_path)) as tier:
        tier.write([], outgoings(range(20)))
    gone = tmp_path / "tier" / "0" / "frames.0"
    gone.unlink()
    doubt(tmp_path / "tier")
    with closing(opened(tmp_path)) as tier:
        how = tier.state().opened
        assert "proven sound" in how
        assert how.endswith(f"; 20 pages dropped, because {gone} is missing or was truncated")
        assert not keys_in(tier)
    with closing(opened(tmp_path)) as tier:
        assert tier.state().opened == "as it was left"


def copy_record(tier: FilesStore, source: Outgoing, target: Outgoing, serial: int) -> None:
    """Puts a record for one page that names the slots of another one, as an old leaf of LMDB would."""
    environment = only(tier)
    with environment.changing() as txn:
        header = environment.unpack(source.key, txn.get(source.key, memoryview(b""), db=environment.pages))
        stale = msgspec.structs.replace(header, serial=serial)
        txn.put(target.key, pack_record(target.key, stale), db=environment.pages)


@pytest.mark.parametrize("count", [1, 3])
def test_of_two_records_that_name_a_slot_the_older_is_dropped(tmp_path: Path, count: int) -> None:
    pages = outgoings(range(20))
    with closing(opened(tmp_path)) as tier:
        tier.write([], pages[:1])
        tier.write([pages[0].key], pages[1:])
        for number in range(count):
            copy_record(tier, pages[5 + number], outgoing(100 + number), serial=1)
    with closing(opened(tmp_path)) as tier:
        assert keys_in(tier) == {page.key for page in pages[1:]}
        assert outcomes(tier, pages[1:]) == {ReadOutcome.EXACT}
        assert tier.state().used_frames == 3 * 19
        assert all(tier.write([], outgoings(range(200, 260))).stored)
        assert outcomes(tier, pages[1:] + outgoings(range(200, 260))) == {ReadOutcome.EXACT}


def test_a_stale_record_cannot_free_slots_of_another_page(files: FilesStore) -> None:
    pages = outgoings(range(20))
    files.write([], pages)
    copy_record(files, pages[5], outgoing(100), serial=1)
    assert outcome_of(files, outgoing(100)) is ReadOutcome.DAMAGED
    assert outcome_of(files, outgoing(100)) is ReadOutcome.ABSENT
    others = fill(files, 200)
    assert outcomes(files, [*pages, *others]) == {ReadOutcome.EXACT}


@pytest.mark.parametrize("at", [0, 8, 30, 70, 83, 90])
def test_a_damaged_record_is_one_page(tmp_path: Path, at: int) -> None:
    """Wherever it is damaged: size, namespace, slots or its own checksum."""
    pages = outgoings(range(20))
    with closing(opened(tmp_path)) as tier:
        tier.write([], pages)
        environment = only(tier)
        with environment.changing() as txn:
            record = bytearray(txn.get(pages[5].key, b"", db=environment.pages))
            record[at] ^= 1
            txn.put(pages[5].key, bytes(record), db=environment.pages)
        assert outcome_of(tier, pages[5]) is ReadOutcome.DAMAGED
        with environment.changing() as txn:
            txn.put(pages[5].key, bytes(record), db=environment.pages)
    with closing(opened(tmp_path)) as tier:
        assert keys_in(tier) == {page.key for page in pages} - {pages[5].key}
        assert outcomes(tier, pages[:5] + pages[6:]) == {ReadOutcome.EXACT}
        assert tier.state().used_frames == 3 * 19
