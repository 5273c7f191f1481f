"""Tests that the checker finds each kind of broken promise, and no violation if all were kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from oracle.checker import Kind, Losses, findings
from oracle.journal import Record, Reported
from oracle.samples import Attachment, Caps, EndState, Sample
from pagetier.shm._core import KEY_BYTES

PAGE, OTHER = b"p" * KEY_BYTES, b"o" * KEY_BYTES
WELL = EndState(
    integrity=(), frames=10, used_frames=4, free_frames=6, pages=4, open_entries=0, attached=(Attachment(5, "a", 0),)
)
CAPS = Caps(arena=100, shm=200, disk=300)


def record(what: Reported, since: int, at: int | None = None, key: bytes = PAGE, **more: Any) -> Record:
    return Record(what, key, since, since + 1 if at is None else at, 1, **more)


def kinds(*records: Record, **more: Any) -> list[Kind]:
    return [violation.kind for violation in findings(records, **more)]


STORED = (record(Reported.STORING, 1), record(Reported.STORED, 1, 3))


def test_a_run_that_keeps_all_promises_has_no_violation() -> None:
    life = (*STORED, record(Reported.HIT, 5), record(Reported.LOADED, 6), record(Reported.MISSED, 7, key=OTHER))
    sample = Sample(at=1, arena=100, shm=200, disk=300)
    assert findings(life, samples=[sample], caps=CAPS, end=WELL, staying={5}) == []


def test_wrong_bytes_are_a_violation() -> None:
    (found,) = findings([*STORED, record(Reported.WRONG, 5, note="byte 3 is wrong")])
    assert (found.kind, found.key, found.pid) == (Kind.BYTES, PAGE, 1) and "byte 3" in str(found)


@pytest.mark.parametrize("sight", [Reported.HIT, Reported.LOADED, Reported.PRESENT])
def test_a_hit_on_a_page_that_was_never_stored_is_a_violation(sight: Reported) -> None:
    assert kinds(record(sight, 5)) == [Kind.NOWHERE]
    assert kinds(record(Reported.STORING, 1, key=OTHER), record(sight, 5)) == [Kind.NOWHERE]
    assert kinds(record(Reported.STORING, 1), record(sight, 5)) == []


def test_a_hit_on_a_page_with_a_missing_part_is_a_violation() -> None:
    first, second = (record(Reported.STORING, 1 + part, part=part, parts=2) for part in range(2))
    assert kinds(first, record(Reported.HIT, 5)) == [Kind.NOWHERE]
    assert kinds(first, second, record(Reported.HIT, 5)) == []


def test_a_miss_of_a_stored_page_is_a_violation() -> None:
    assert kinds(*STORED, record(Reported.MISSED, 4)) == [Kind.LOST]


def test_a_miss_of_a_page_that_was_hit_before_is_a_violation() -> None:
    life = (record(Reported.STORING, 1), record(Reported.HIT, 2), record(Reported.MISSED, 4))
    assert kinds(*life) == [Kind.LOST]
    assert kinds(*life, may_go=Losses(at_most=1)) == []


def test_a_match_that_began_before_the_store_ended_may_miss() -> None:
    assert kinds(*STORED, record(Reported.MISSED, 2, 9)) == []


def test_a_store_without_a_response_is_no_promise() -> None:
    assert kinds(record(Reported.STORING, 1), record(Reported.MISSED, 4)) == []
    assert kinds(record(Reported.STORING, 1), record(Reported.REFUSED, 2), record(Reported.MISSED, 4)) == []


def test_more_misses_than_evicted_pages_are_a_violation() -> None:
    again = (record(Reported.STORED, 5), record(Reported.MISSED, 7))
    life = (*STORED, record(Reported.MISSED, 4), *again)
    assert kinds(*life, may_go=Losses(at_most=2)) == []
    assert kinds(*life, may_go=Losses(at_most=1)) == [Kind.LOST]
    assert kinds(*life, may_go=None) == []


def test_matches_while_the_disk_was_not_open_may_miss() -> None:
    assert kinds(*STORED, record(Reported.MISSED, 4), may_go=Losses(since=5)) == []
    assert kinds(*STORED, record(Reported.MISSED, 6), may_go=Losses(since=5)) == [Kind.LOST]


def test_a_dropped_page_may_be_missed() -> None:
    assert kinds(*STORED, record(Reported.DROPPING, 4), record(Reported.MISSED, 6)) == []
    assert kinds(*STORED, record(Reported.MISSED, 4), record(Reported.DROPPING, 6)) == [Kind.LOST], (
        "the page was missed before"
    )
    late = (
        record(Reported.DROPPING, 1),
        record(Reported.STORING, 3),
        record(Reported.STORED, 3, 5),
        record(Reported.MISSED, 6),
    )
    assert kinds(*late) == [Kind.LOST], "the page was stored after the drop had ended"
    assert kinds(record(Reported.DROPPING, 1, 4), *late) == [], "the page was stored during the drop"


def test_parts_make_a_page_only_if_they_belong_to_one_reservation() -> None:
    def part(index: int, serial: bytes, at: int) -> Record:
        return record(Reported.STORED, at, part=index, parts=2, serials=serial * 8)

    missed = record(Reported.MISSED, 9)
    assert kinds(part(0, b"1", 1), missed) == []
    assert kinds(part(0, b"1", 1), part(1, b"2", 3), missed) == []
    assert kinds(part(0, b"1", 1), part(1, b"1", 3), missed) == [Kind.LOST]
    assert kinds(part(0, b"1", 1), part(1, b"1", 10), missed) == [], (
        "the page was not complete at the time of the match"
    )


@pytest.mark.parametrize("what", ["arena", "shm", "disk"])
def test_a_sample_over_the_limit_is_a_violation(what: str) -> None:
    most = Sample(at=1, arena=100, shm=200, disk=300)
    over = msgspec.structs.replace(most, **{what: getattr(CAPS, what) + 1})
    (found,) = findings([], samples=[most, over], caps=CAPS)
    assert found.kind is Kind.CAP and found.what.startswith(what)
    assert kinds(samples=[over], caps=Caps(arena=200)) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"integrity": ("entry 3 is lost",)}, Kind.INTEGRITY),
        ({"free_frames": 5}, Kind.FRAMES),
        ({"open_entries": 1}, Kind.OPEN),
        ({"leftovers": ("pagetier.index",)}, Kind.LEFTOVER),
        ({"attached": (Attachment(5, "a", 1),)}, Kind.PINS),
        ({"attached": (Attachment(5, "a", 0), Attachment(6, "b", 0))}, Kind.SLOT),
        ({"attached": (Attachment(7, "disk tier", 2),)}, Kind.PINS),
    ],
)
def test_a_cache_that_is_not_at_rest_at_the_end_is_a_violation(change: dict[str, Any], kind: Kind) -> None:
    assert kinds(end=msgspec.structs.replace(WELL, **change), staying={5}) == [kind]
    assert kinds(end=WELL, staying={5}) == []
