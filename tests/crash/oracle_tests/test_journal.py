"""Tests that a journal survives the death of its process at any instruction, with all responses in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from child_process import kill, spawn
from eventually import eventually
from oracle.journal import Journal, Reported, read_journal, read_journals
from pagetier.shm._core import KEY_BYTES

KEYS = [bytes([number]) * KEY_BYTES for number in range(5)]


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    with Journal.of_this_process(tmp_path) as journal:
        journal.write(Reported.STORED, KEYS[:2], 17, part=1, parts=2, serials=bytes(range(16)))
        journal.write(Reported.WRONG, KEYS[4], note='byte 7 is "wrong"\n')
        journal.write(Reported.HIT, b"")
    stored, wrong = read_journals(tmp_path)
    assert (stored.reported, list(stored.each()), stored.since, stored.pid) == (
        Reported.STORED,
        KEYS[:2],
        17,
        os.getpid(),
    )
    assert (stored.part, stored.parts) == (1, 2)
    assert list(stored.fillings()) == [(KEYS[0], bytes(range(8))), (KEYS[1], bytes(range(8, 16)))]
    assert (wrong.note, wrong.since) == ('byte 7 is "wrong"\n', wrong.at)
    assert list(wrong.fillings()) == [(KEYS[4], b"")]


def test_a_killed_process_leaves_all_that_it_wrote(tmp_path: Path) -> None:
    def write_for_ever() -> None:
        journal = Journal.of_this_process(tmp_path)
        for number in range(10**9):
            journal.write(Reported.STORING, number.to_bytes(KEY_BYTES, "little"))

    child = spawn(write_for_ever)
    assert eventually(lambda: len(read_journals(tmp_path)) > 100)
    kill(child)
    numbers = [int.from_bytes(record.keys, "little") for record in read_journals(tmp_path)]
    assert numbers == list(range(len(numbers))) and numbers


@pytest.mark.parametrize("cut", [1, 2, 50])
def test_a_torn_last_record_is_dropped(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        journal.write(Reported.STORING, KEYS[0])
        journal.write(Reported.STORED, KEYS[0])
    path.write_bytes(path.read_bytes()[:-cut])
    assert [record.reported for record in read_journal(path)] == [Reported.STORING]


def test_an_invalid_record_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b"nonsense\n")
    with pytest.raises(ValueError, match="JSON"):
        read_journal(path)


def test_records_of_all_processes_come_in_order_of_time(tmp_path: Path) -> None:
    first, second = Journal(tmp_path / "z.journal"), Journal(tmp_path / "a.journal")
    with first, second:
        first.write(Reported.STORING, KEYS[0])
        second.write(Reported.HIT, KEYS[0])
        first.write(Reported.STORED, KEYS[0])
    assert [record.reported for record in read_journals(tmp_path)] == [Reported.STORING, Reported.HIT, Reported.STORED]
