"""Tests the oracle with a real daemon: the records of a witness, and the verdict of the checker on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from oracle.checker import Kind, findings
from oracle.journal import Journal, Reported, read_journals
from oracle.samples import Caps, end_of, segments_bytes, taken
from oracle.witness import Verified, Witness
from pagetier.client import Client
from pagetier.client.adapters import Part
from running_daemon import RunningDaemon, namespace

PAGE = 64 << 10
SEED = 3
SPACE = namespace()
KEYS = SPACE.keys(range(64))


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("1MiB", "64KiB", "--set=evict.free=0") as running:
        yield running


@pytest.fixture
def witness(daemon: RunningDaemon, tmp_path: Path) -> Iterator[Witness]:
    with daemon.client() as client, Journal.of_this_process(tmp_path) as journal:
        yield Witness(client, journal, SEED, PAGE)


def whats(folder: Path) -> list[Reported]:
    return [record.reported for record in read_journals(folder)]


def test_a_witness_records_stores_hits_and_loads(daemon: RunningDaemon, witness: Witness, tmp_path: Path) -> None:
    assert witness.verify(KEYS) == Verified(0, 0, 0)
    assert witness.store(KEYS[:3]).stored == 3
    assert witness.store(KEYS[:3]).present == 3
    assert witness.verify(KEYS) == Verified(3, 3, 3)
    assert whats(tmp_path) == [
        Reported.MISSED, Reported.STORING, Reported.STORED, Reported.STORING, Reported.PRESENT,
        Reported.HIT, Reported.MISSED, Reported.LOADED,
    ]  # fmt: skip
    sample, caps = taken(daemon._observer(), daemon.name), Caps(arena=1 << 20, shm=segments_bytes(daemon._observer()))
    assert 3 * PAGE <= sample.arena < sample.shm
    witness.client.close()
    assert eventually(lambda: not daemon.slots())
    assert findings(read_journals(tmp_path), samples=[sample], caps=caps, end=end_of(daemon)) == []


def test_a_witness_records_wrong_bytes(witness: Witness, tmp_path: Path) -> None:
    witness.journal.write(Reported.STORING, KEYS[0])
    assert witness.client.store(KEYS[:1], np.ones((1, PAGE), np.uint8)).stored == 1
    assert witness.verify(KEYS[:1]) == Verified(1, 1, 0)
    assert [found.kind for found in findings(read_journals(tmp_path))] == [Kind.BYTES]


def test_the_checker_finds_an_eviction_that_is_not_allowed(
    daemon: RunningDaemon, witness: Witness, tmp_path: Path
) -> None:
    assert witness.store(KEYS[:1]).stored == 1
    others = SPACE.keys(range(10_000, 10_000 + 16 * 16))
    assert witness.store(others).stored == 16
    assert witness.verify(KEYS[:1]) == Verified(0, 0, 0)
    assert [found.kind for found in findings(read_journals(tmp_path))] == [Kind.LOST]


def test_parts_of_two_writers_make_a_promise(daemon: RunningDaemon, witness: Witness, tmp_path: Path) -> None:
    with daemon.client() as client:
        other = Witness(client, witness.journal, SEED, PAGE)
        assert witness.store(KEYS[:2], Part(0, 2)).stored == 2
        assert witness.verify(KEYS[:1]) == Verified(0, 0, 0)
        assert other.store(KEYS[:2], Part(1, 2)).stored == 2
        assert witness.verify(KEYS[:2]) == Verified(2, 2, 2)
    assert findings(read_journals(tmp_path)) == []


def test_a_client_that_is_not_attached_records_no_miss(tmp_path: Path) -> None:
    with Client(tmp_path / "missing.sock") as client, Journal.of_this_process(tmp_path) as journal:
        assert Witness(client, journal, SEED, PAGE).verify(KEYS).away
    assert whats(tmp_path) == []


def test_a_cache_with_pins_is_not_at_rest(daemon: RunningDaemon, witness: Witness) -> None:
    witness.store(KEYS[:1])
    with witness.client.match(KEYS[:1]):
        assert {found.kind for found in findings([], end=end_of(daemon))} == {Kind.SLOT, Kind.PINS}
