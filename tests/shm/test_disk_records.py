"""Records of pages, which the core reads for the disk's worker, against what Python writes and reads of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.shm._core import HISTORY_BYTES, KEY_BYTES, claim_slots, frames_named, keys_ascend, stored_pages
from pagetier.shm.page_rows import STORED_PAGES, StoredPage
from pagetier.tiers.disk.file_format import (
    COMPRESSED_FORMAT,
    FORMAT,
    NO_HISTORY,
    OLD_FORMAT,
    OLD_HEADER_BYTES,
    FrameExtent,
    Header,
    RecordError,
    frames_of,
    pack_header,
    unpack_header,
)
from pagetier.tiers.frame_files.records import CHECK_BYTES, check_of, mark_of, pack_record, unpack_record

SLOT: Final = 4096
SLOTS: Final = 24
LARGEST: Final = 8 * SLOT
MARKS: Final = 2**32 - 1
Record = tuple[bytes, bytes]

KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
EXTENTS = st.lists(st.builds(FrameExtent, st.integers(0, SLOTS), st.integers(0, 3)), min_size=1, max_size=4).map(tuple)
SIZES = st.integers(0, LARGEST + 1) | st.sampled_from([2**63, 2**64 - 1])
HEADERS = st.builds(
    Header,
    space=st.integers(0, 2**32 - 1),
    size=SIZES,
    stamp=st.integers(0, 2**64 - 1),
    checksum=st.binary(min_size=16, max_size=16),
    extents=EXTENTS,
    history=st.binary(min_size=HISTORY_BYTES, max_size=HISTORY_BYTES),
    serial=st.integers(0, 6),
    coded=st.just(0) | SIZES,
)


@st.composite
def fitting(draw: st.DrawFn) -> Header:
    """A header whose extents are those of its page."""
    header = draw(HEADERS)
    size = max(1, sum(extent.frames for extent in header.extents) * SLOT - draw(st.integers(0, SLOT - 1)))
    return msgspec.structs.replace(header, size=size, coded=draw(st.sampled_from([0, size])))


def old(packed: bytes) -> bytes:
    """Returns a header as format 1 has it."""
    return bytes([OLD_FORMAT, 0]) + packed[2:OLD_HEADER_BYTES] + packed[OLD_HEADER_BYTES + HISTORY_BYTES + 16 :]


@st.composite
def damaged(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    """A value that may be cut, and of which some byte may be another one."""
    value = bytearray(draw(values))
    if draw(st.booleans()):
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    return bytes(value[: draw(st.just(len(value)) | st.integers(0, len(value)))])


HEADS = (HEADERS | fitting()).map(pack_header)
VALUES = HEADS | HEADS.map(old) | damaged(HEADS) | damaged(HEADS.map(old))


def test_a_record_is_whole_only_with_the_checksum_of_its_key_and_its_header() -> None:
    """All lengths occur: those of a key of 32 bytes, and others, so that every form of the hash is compared."""
    checked = 0
    for extents in (*range(1, 30), 150):
        places = tuple(FrameExtent(place, 1) for place in range(extents))
        for key_bytes in {*range(0, 65, 1 if extents < 3 else 9), KEY_BYTES}:
            key = bytes(range(key_bytes))
            whole = pack_record(key, Header(0, extents * SLOT, 1, bytes(16), places, NO_HISTORY, 7))
            owners = np.zeros(extents, np.uint32)
            assert claim_slots([(key, whole)], SLOT, owners) == ([], [], 0, 7)
            assert (owners == 7).all()
            changed = whole[: 8 + checked % 72] + bytes([whole[8 + checked % 72] ^ 1]) + whole[9 + checked % 72 :]
            assert claim_slots([(key, changed)], SLOT, owners).wrong == [key]
            checked += 1
    assert checked > 300


def page_of(record: Record, tier_format: int) -> StoredPage | None:
    """Returns what a listing has of a record, by the functions that read a page's header."""
    key, value = record
    if len(key) != KEY_BYTES:
        return None
    try:
        begin = OLD_HEADER_BYTES if value[:1] == bytes([OLD_FORMAT]) else OLD_HEADER_BYTES + HISTORY_BYTES + 16
        formats = {OLD_FORMAT, FORMAT, tier_format}
        header = unpack_header(value[: max(begin, 0)], formats)  # a listing does not read the extents
    except RecordError:
        return None
    if not 0 < header.size <= LARGEST:
        return None
    is_coded = value[0] == COMPRESSED_FORMAT
    slots = min(frames_of(header.coded, SLOT), 2**32 - 1) if is_coded else 0
    return StoredPage(key, header.history, header.size, header.stamp, header.space, slots)


@given(st.lists(st.tuples(KEYS | st.binary(max_size=40), VALUES), max_size=6), st.sampled_from([2, 3]))
def test_a_listing_has_the_pages_of_valid_records_alone(records: list[Record], tier_format: int) -> None:
    expected = [page for record in records if (page := page_of(record, tier_format))]
    assert list(STORED_PAGES.read(bytes(stored_pages(records, tier_format, LARGEST, SLOT)))) == expected


def named_by(values: Iterable[bytes]) -> int | None:
    """Returns how many frames these headers name, None if one has others than its page."""
    named = 0
    for value in values:
        begin = OLD_HEADER_BYTES + (HISTORY_BYTES + 16 if value[:1] == bytes([FORMAT]) else 0)
        if len(value) < begin or len(value) % 8:
            return None
        frames = sum(frames for _, frames in struct.iter_unpack("<II", value[begin:]))
        if frames != frames_of(int.from_bytes(value[8:16], "little"), SLOT):
            return None
        named += frames
    return named


@given(st.lists(VALUES, max_size=3) | st.lists(fitting().map(pack_header), max_size=5))
def test_frames_are_counted_if_each_header_names_those_of_its_page(values: list[bytes]) -> None:
    assert frames_named([(b"", value) for value in values], SLOT) == named_by(values)


def test_frames_without_bytes_are_no_count() -> None:
    header = Header(0, SLOT, 1, bytes(16), (FrameExtent(0, 1),))
    assert frames_named([(b"", pack_header(header))], SLOT) == 1
    assert frames_named([(b"", pack_header(header))], 0) is None
    with pytest.raises(OverflowError):
        frames_named([], -1)


class Expected(msgspec.Struct):
    """What a plain reading of records says of the slots."""

    serials: list[int]
    wrong: list[bytes] = []
    losers: set[int] = set()
    beyond: int = 0
    newest: int = 0


def header_of(record: Record) -> Header | None:
    """Returns the header of a record of the files store if it has the slots that its page needs."""
    key, value = record
    try:
        header = unpack_record(key, value)
    except RecordError:
        return None
    slots = sum(extent.frames for extent in header.extents)
    return header if header.extents and slots == frames_of(header.stored_bytes, SLOT) else None


def claimed(records: list[Record]) -> Expected:
    expected = Expected([0] * SLOTS)
    for record in records:
        header = header_of(record)
        slots = [slot for x in header.extents for slot in range(x.page, x.page + x.frames)] if header else []
        ends = [extent.page + extent.frames for extent in header.extents] if header else []
        if header is None or max(ends) > SLOTS:
            expected.wrong.append(record[0])
            expected.beyond += header is not None
            continue
        expected.newest = max(expected.newest, header.serial)
        others = {expected.serials[slot] for slot in slots} - {0}
        if others and max(others) > header.serial:
            expected.losers.add(header.serial)
            continue
        expected.losers |= others
        for slot in slots:
            expected.serials[slot] = header.serial
    return expected


@st.composite
def record_of_files(draw: st.DrawFn, first: int) -> Record:
    """A record of one of the writes from `first` on."""
    key, header = draw(KEYS), draw(fitting() | HEADERS)
    header = msgspec.structs.replace(header, serial=first + header.serial)
    value = pack_record(key, header)
    return (key, draw(st.just(value) | damaged(st.just(value))))


FIRST_WRITES = st.sampled_from([1, MARKS - 3])  # the second: marks begin again while they write


@given(FIRST_WRITES.flatmap(lambda first: st.lists(record_of_files(first), max_size=8)))
def test_a_slot_belongs_to_the_newest_valid_record_that_names_it(records: list[Record]) -> None:
    expected, owners = claimed(records), np.zeros(SLOTS, np.uint32)
    found = claim_slots(records, SLOT, owners)
    assert owners.tolist() == [serial and mark_of(serial) for serial in expected.serials]
    assert (found.wrong, set(found.losers)) == (expected.wrong, set(map(mark_of, expected.losers)))
    assert (found.beyond, found.newest) == (expected.beyond, expected.newest)


def test_two_records_of_one_write_both_lose() -> None:
    records = [
        (key, pack_record(key, Header(0, 2 * SLOT, 1, bytes(16), (FrameExtent(place, 2),), NO_HISTORY, 5)))
        for key, place in ((b"a", 0), (b"b", 1))
    ]
    owners = np.zeros(4, np.uint32)
    assert claim_slots(records, SLOT, owners) == ([], [5], 0, 5)
    assert owners.tolist() == [5, 5, 5, 0]


def test_an_extent_beyond_32_bits_is_beyond_the_files() -> None:
    header = Header(0, SLOT, 1, bytes(16), (FrameExtent(2**32 - 1, 1),), NO_HISTORY, 7)
    owners = np.zeros(SLOTS, np.uint32)
    assert claim_slots([(b"k", pack_record(b"k", header))], SLOT, owners) == ([b"k"], [], 1, 0)
    assert not owners.any()


def test_more_slots_than_there_are_is_beyond_the_files() -> None:
    """Or a record of 8 KB that names all slots a thousand times would be read for seconds."""
    key, owners = bytes(KEY_BYTES), np.zeros(4, np.uint32)
    twice = Header(0, 6 * SLOT, 1, bytes(16), (FrameExtent(0, 3),) * 2, NO_HISTORY, 7)
    assert claim_slots([(key, pack_record(key, twice))], SLOT, owners) == ([key], [], 1, 0)
    assert not owners.any()


def test_a_checksum_alone_is_no_record() -> None:
    key, header = bytes(KEY_BYTES), pack_header(Header(0, 1, 1, bytes(16), ()))
    for value in (b"", bytes(CHECK_BYTES), check_of(key, b""), header, header + check_of(key, header)):
        assert claim_slots([(key, value)], SLOT, np.zeros(1, np.uint32)).wrong == [key]


@given(st.lists(st.binary(max_size=3), max_size=6), st.binary(max_size=3))
def test_keys_ascend_as_bytes_do(keys: list[bytes], after: bytes) -> None:
    for some in (keys, sorted({key for key in keys if key > after})):
        records = [(key, b"") for key in some]
        assert keys_ascend(records, after) == all(one < other for one, other in pairwise([after, *some]))


READERS: Final[list[Callable[[Any], object]]] = [
    lambda records: keys_ascend(records, b""),
    lambda records: frames_named(records, SLOT),
    lambda records: stored_pages(records, FORMAT, LARGEST, SLOT),
    lambda records: claim_slots(records, SLOT, bytearray(8)),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("wrong", [(), [b"x"], [(b"x",)], [(b"x", b"x", b"x")], [(b"x", "x")], [(bytearray(1), b"x")]])
def test_what_is_no_list_of_records_is_refused(read: Callable[[Any], object], wrong: Any) -> None:
    with pytest.raises(TypeError):
        read(wrong)


def test_owners_that_cannot_be_written_are_refused() -> None:
    with pytest.raises((TypeError, BufferError)):
        claim_slots([], SLOT, bytes(8))
    with pytest.raises(ValueError, match="not aligned"):
        claim_slots([], SLOT, memoryview(bytearray(17))[1:])
