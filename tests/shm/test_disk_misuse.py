"""Invalid requests to the disk tier's part of the binding are rejected or ignored, and the index stays consistent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anonymous_segments import DAY_NS
from index_with_disk import FRAME, Place, key, u32, u64
from pagetier.shm._core import (
    DISK_DEVICES,
    KEY_BYTES,
    SLOTS,
    ReserveOutcome,
    WriteResult,
    WriteRule,
    located_pages,
    pack_reserve,
    page_requests,
)
from pagetier.shm.message_codec import LENGTH, read_reserved
from pagetier.shm.page_rows import PAGE_ANSWERS, PAGES_TO_READ, PAGES_TO_WRITE, PageAnswer, PageToWrite


def rows_of(*entries: int) -> bytes:
    """Returns rows of pages to write with these entries."""
    return PAGES_TO_WRITE.pack(PageToWrite(b"k" * KEY_BYTES, bytes(24), 1, 1, 1, entry, 0, 0) for entry in entries)


REFUSED: list[tuple[str, tuple[object, ...]]] = [
    ("disk_open", (8, len(WriteRule))),
    ("disk_rule", (len(WriteRule),)),
    ("disk_report", (b"k" * (KEY_BYTES - 1), b"", b"", b"")),
    ("disk_report", (b"k" * KEY_BYTES, bytes(8), bytes(4), b"")),
    ("disk_report", (b"k" * KEY_BYTES, bytes(8), bytes(8), bytes(8))),
    ("disk_damaged", (b"k" * (KEY_BYTES + 1),)),
    ("end_writes", (rows_of(0), b"")),
    ("end_writes", (rows_of(0)[1:], bytes(1))),
    ("end_writes", (rows_of(0), bytes(1), b"")),
    ("disk_report", (b"k" * KEY_BYTES, bytes(8), bytes(4), bytes(8), 0, b"")),
    ("disk_open", (8, WriteRule.EVICTED, DISK_DEVICES)),
    ("disk_open", (8, WriteRule.EVICTED, 0, FRAME + 1)),
    ("start_writes", (1, 1, DISK_DEVICES)),
    ("fetch", (u32(SLOTS), 1, b"", u64(0))),
    ("fetch", (u32(*[0] * (DISK_DEVICES + 1)), 1, b"", u64(*[0] * (DISK_DEVICES + 1)))),
    ("fetch", (u32(0, 0), 1, b"", u64(0))),
    ("fetch", (u32(0), 1, b"k", u64(0))),
    ("fetch_located", (u32(0), 1, b"", u64(0), SLOTS, 1, b"")),
    ("fetch_located", (u32(0), 1, b"k" * 32, u64(0), 0, 1, u32(0))),
    ("fetch_located", (u32(0), 1, located_pages(b"k" * 32, u64(1), u32(0)), u64(0), 0, 1, u32(99))),
    ("fetch_located", (u32(0), 1, located_pages(b"k" * 32, u64(1), u32(0)), u64(0), 0, 1, b"odd")),
    ("fetch_located", (u32(SLOTS), 1, b"", u64(0), 0, 1, u32(0))),
    ("reservations", (bytes(1),)),
]


@pytest.mark.parametrize(("name", "arguments"), REFUSED)
def test_invalid_arguments_are_rejected(disk: Place, name: str, arguments: tuple[object, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"no rule|no such slot|no device|no whole number|elements|larger than a frame"
    ):
        getattr(disk.owner, name)(*arguments)


def test_no_call_works_before_the_adoption(place: Place) -> None:
    owner = place.memory.owner()
    calls: list[Callable[[], object]] = [
        lambda: owner.disk_open(8, WriteRule.EVICTED),
        lambda: owner.disk_rule(WriteRule.EVICTED),
        owner.unwritten,
        owner.disk_close,
        lambda: owner.disk_report(b"", b"", b"", b""),
        owner.disk_drops,
        lambda: owner.disk_damaged(b""),
        lambda: owner.frames_before_unwritten(1),
        lambda: owner.start_writes(1, 1),
        lambda: owner.end_writes(b"", b""),
        lambda: owner.fetch(b"", 1, b"", b""),
        lambda: owner.reservations(b""),
        lambda: owner.tiers(b""),
        lambda: owner.count_fetched(0, 0, 0),
        lambda: owner.publish_status(b""),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="adopt"):
            call()


names = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=6)
numbers = st.lists(st.integers(0, 14) | st.integers(0, 2**32 - 1), max_size=6)


def rows(keys: bytes, size: int) -> bytes:
    """Returns rows of pages of this size."""
    return page_requests(keys, u64(*[size] * (len(keys) // KEY_BYTES)))


def reserve_message(pages: bytes) -> bytes:
    """Returns the request to reserve these rows of pages, by a writer of whole pages."""
    return pack_reserve(1, bytes(KEY_BYTES), "", 0, 0, 0, 0, 1, pages, 0, None, 0, 0)


def answers(reserved: tuple[Any, ...]) -> list[PageAnswer]:
    """Returns what reserve() has answered for each page."""
    return list(PAGE_ANSWERS.read(read_reserved(reserved[0][LENGTH.size :]).pages))


def steps() -> st.SearchStrategy[tuple[str, tuple[Any, ...]]]:
    """Returns random calls of a faulty daemon."""
    devices = st.integers(0, 1)
    keys = names.map(lambda some: b"".join(map(key, some)))
    reports = st.lists(
        st.tuples(
            st.sampled_from("abcdefghijklmnop"),
            st.sampled_from([FRAME, 2 * FRAME, 3, 0, 2**64 - 1]),
            st.integers(0, 2),
            st.integers(0, 2**64 - 1),
        ),
        max_size=8,
    )
    return st.one_of(
        st.tuples(st.just("disk_rule"), st.tuples(st.sampled_from(WriteRule))),
        st.tuples(st.just("disk_close"), st.tuples(devices)),
        st.tuples(
            st.just("disk_open"),
            st.tuples(st.integers(0, 48), st.sampled_from(WriteRule), devices, st.sampled_from([0, FRAME // 4, FRAME])),
        ),
        reports.map(
            lambda r: (
                "disk_report",
                (
                    b"".join(key(n) for n, *_ in r),
                    u64(*(n for _, n, *_ in r)),
                    u32(*(n for *_, n, _ in r)),
                    u64(*(n for *_, n in r)),
                    len(r) % 2,
                    u32(*(n % 13 for *_, n in r)),
                ),
            )
        ),
        st.tuples(st.just("disk_damaged"), st.tuples(keys, devices)),
        st.tuples(st.just("start_writes"), st.tuples(st.integers(0, 20), st.integers(0, 20), devices)),
        numbers.map(
            lambda n: (
                "end_writes",
                (
                    rows_of(*n),
                    bytes(at % (len(WriteResult) + 1) for at in range(len(n))),
                    u32(*(one % 13 for one in n)),
                ),
            )
        ),
        st.tuples(
            st.just("fetch"),
            st.tuples(st.just(u32(0, 0)), st.sampled_from([1, DAY_NS]), keys, st.sampled_from([u64(0, 0), u64(1, 3)])),
        ),
        keys.map(lambda k: ("reserve", (0, 0, DAY_NS, 0, reserve_message(rows(k, FRAME + len(k) % 3))))),
        st.tuples(st.just("evict"), st.tuples(st.integers(0, 8), st.integers(0, 9))),
        st.tuples(st.just("flush"), st.tuples(st.integers(-1, 3), st.integers(0, 5))),
        st.tuples(st.just("settle"), st.just(())),
    )


@settings(deadline=None, max_examples=200)
@given(st.lists(steps(), max_size=40), st.randoms(use_true_random=False))
def test_random_calls_leave_the_index_consistent(asked: list[tuple[str, tuple[Any, ...]]], chance: Any) -> None:
    place = Place()
    place.owner.disk_open(6, WriteRule.THROUGH)
    for name, arguments in asked:
        got = getattr(place.owner, name)(*arguments)
        if name in ("fetch", "reserve"):
            for page in PAGES_TO_READ.read(got) if name == "fetch" else answers(got):
                if page.outcome == ReserveOutcome.GRANTED and chance.random() < 0.7:
                    place.session.publish(u32(page.entry), u64(page.serial), 0)
                elif page.outcome == ReserveOutcome.GRANTED and chance.random() < 0.7:
                    place.session.abandon(u32(page.entry), u64(page.serial), 0)
        assert place.owner.check_integrity() == [], name
    place.memory.close()
