"""Tests the rows of messages against the structs of the core, and the frames that carry them."""

from __future__ import annotations

import math
import mmap
import struct
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from child_process import in_child
from pagetier.shm import _core
from pagetier.shm._core import (
    KEY_BYTES,
    PAGE_ANSWER_LAYOUT,
    PAGE_REQUEST_LAYOUT,
    answer_columns,
    located_columns,
    located_pages,
    page_names,
    page_requests,
    pages_to_find,
    spaces_below,
)
from pagetier.shm.message_codec import LENGTH, pack, read_answer, read_request
from pagetier.shm.page_rows import (
    LOCATED_PAGES,
    PAGE_ANSWERS,
    PAGE_KEYS,
    PAGE_REQUESTS,
    PAGE_SIZES,
    PAGES_TO_FIND,
    LocatedPage,
    PageAnswer,
    PageRequest,
    PageToFind,
)
from pagetier.shm.protocol import Prompt, ProtocolError, Reserve, Reserved, Space

MAP_NORESERVE = 0x4000
U8, U32, U64 = st.integers(0, 2**8 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
PAGES = st.lists(st.builds(PageRequest, KEYS, U64), max_size=5)
ANSWERS = st.lists(st.builds(PageAnswer, U8, U32, U64), max_size=5)
PARENTS = KEYS.filter(any) | st.just(b"")
PROMPTS = st.lists(st.builds(Prompt, U32, PARENTS, st.integers(-1, 2**24 - 1)), max_size=3).map(tuple)
REQUEST = Reserve(7, Space(b"d" * KEY_BYTES, "né", 16, 2, 64), 1, 2, bytes(80), 3, (Prompt(0, b"p" * KEY_BYTES, 5),))


@st.composite
def requests(draw: st.DrawFn) -> Reserve:
    hint = draw(st.sampled_from([0.0, 1.5, 3600.0, math.inf]))
    space = Space(draw(KEYS), draw(st.text(max_size=80)), draw(U32), draw(U8), draw(U32))
    pages, prompts = PAGE_REQUESTS.pack(draw(PAGES)), draw(st.none() | PROMPTS)
    return Reserve(draw(U64), space, draw(U8), draw(U8), pages, draw(U32), prompts, draw(U32), hint)


def body(message: Reserve | Reserved) -> bytes:
    packed = pack(message)
    assert LENGTH.unpack_from(packed)[0] == len(packed) - LENGTH.size
    return packed[LENGTH.size :]


@given(PAGES)
def test_rows_of_requests_are_what_the_core_packs(pages: list[PageRequest]) -> None:
    sizes = struct.pack(f"<{len(pages)}Q", *(page.size for page in pages))
    packed = page_requests(b"".join(page.key for page in pages), sizes)
    assert packed == PAGE_REQUESTS.pack(pages) and list(PAGE_REQUESTS.read(packed)) == pages
    assert PAGE_REQUESTS.count(packed) == len(pages) and len(packed) == PAGE_REQUEST_LAYOUT.size * len(pages)
    assert [PAGE_REQUESTS.row(packed, number) for number in range(len(pages))] == pages
    assert list(PAGE_REQUESTS.read(PAGE_REQUESTS.first(packed, 2))) == pages[:2]


@given(ANSWERS)
def test_columns_are_the_fields_of_rows(answers: list[PageAnswer]) -> None:
    packed = PAGE_ANSWERS.pack(answers)
    outcomes, entries, serials = answer_columns(packed)
    assert list(outcomes) == [answer.outcome for answer in answers]
    assert list(struct.unpack(f"<{len(answers)}I", entries)) == [answer.entry for answer in answers]
    assert list(struct.unpack(f"<{len(answers)}Q", serials)) == [answer.serial for answer in answers]
    assert len(packed) == PAGE_ANSWER_LAYOUT.size * len(answers) and PAGE_ANSWERS.is_whole(packed)


@pytest.mark.parametrize("packed", [bytes(1), bytes(39), bytes(41)])
def test_a_part_of_a_row_is_refused(packed: bytes) -> None:
    assert not PAGE_REQUESTS.is_whole(packed)
    with pytest.raises(ValueError, match="no whole number"):
        pack(Reserve(1, REQUEST.space, 0, 1, packed))
    with pytest.raises(ValueError, match="no whole number"):
        answer_columns(packed)


@given(requests())
def test_a_request_is_read_as_it_was_packed(request: Reserve) -> None:
    assert read_request(body(request)) == request


@given(st.lists(st.builds(PageToFind, KEYS, U32), max_size=5))
def test_pages_to_find_are_the_same_rows_in_the_core_and_in_python(pages: list[PageToFind]) -> None:
    packed = pages_to_find(b"".join(page.key for page in pages), array("I", [page.space for page in pages]))
    assert packed == PAGES_TO_FIND.pack(pages) and list(PAGES_TO_FIND.read(packed)) == pages


@given(st.lists(st.builds(LocatedPage, KEYS, U64, U32), max_size=5))
def test_located_pages_are_the_same_rows_in_the_core_and_in_python(pages: list[LocatedPage]) -> None:
    keys, sizes = b"".join(page.key for page in pages), array("Q", [page.size for page in pages])
    packed = located_pages(keys, sizes, array("I", [page.space for page in pages]))
    assert packed == LOCATED_PAGES.pack(pages) and list(LOCATED_PAGES.read(packed)) == pages
    assert located_columns(packed) == (keys, sizes.tobytes()) and PAGE_SIZES.count(sizes.tobytes()) == len(pages)
    assert PAGE_KEYS.split(keys) == [page.key for page in pages]


@given(st.lists(st.builds(PageToFind, KEYS, U32), min_size=1, max_size=5))
def test_the_highest_namespace_decides_whether_all_are_in_a_table(pages: list[PageToFind]) -> None:
    packed, highest = PAGES_TO_FIND.pack(pages), max(page.space for page in pages)
    assert not spaces_below(packed, highest) and (highest == 2**32 - 1 or spaces_below(packed, highest + 1))


@given(st.lists(st.text(max_size=9), min_size=1, max_size=3), st.data())
def test_a_page_is_named_by_the_prefix_of_its_namespace_and_its_key(prefixes: list[str], data: st.DataObject) -> None:
    numbers = st.integers(0, len(prefixes) - 1)
    pages = data.draw(st.lists(st.builds(PageToFind, KEYS, numbers), max_size=5))
    names = page_names(PAGES_TO_FIND.pack(pages), prefixes)
    assert names == [prefixes[page.space] + page.key.hex() for page in pages]


def test_a_page_of_a_namespace_without_a_prefix_has_no_name() -> None:
    with pytest.raises(IndexError):
        page_names(PAGES_TO_FIND.pack([PageToFind(bytes(KEY_BYTES), 1)]), ["only"])
    with pytest.raises(ValueError, match="no whole number"):
        page_names(bytes(KEY_BYTES), ["only"])


@given(U64, ANSWERS, st.text(max_size=99))
def test_a_response_is_read_as_it_was_packed(number: int, answers: list[PageAnswer], reason: str) -> None:
    answer = Reserved(number, PAGE_ANSWERS.pack(answers), reason)
    assert read_answer(body(answer)) == answer


def test_a_long_reason_is_cut() -> None:
    answer = read_answer(body(Reserved(1, bytes(16), "x" * 70_000)))
    assert answer == Reserved(1, bytes(16), "x" * 65_535)


@pytest.mark.parametrize("message", [REQUEST, Reserved(9, bytes(32), "né")])
def test_a_frame_of_another_length_is_refused(message: Reserve | Reserved) -> None:
    whole, read = body(message), read_request if isinstance(message, Reserve) else read_answer
    wrong = [*(whole[:end] for end in range(len(whole))), whole + b"\0"]
    if isinstance(message, Reserved):  # the length of the message alone says how many rows it has
        wrong = [cut for cut in wrong if (len(cut) - len(whole)) % PAGE_ANSWER_LAYOUT.size or len(cut) < 12]
    for cut in wrong:
        with pytest.raises(ProtocolError, match="no message of this protocol"):
            read(cut)


def test_a_text_that_is_not_utf_8_is_refused() -> None:
    for message, read in ((REQUEST, read_request), (Reserved(9, b"", "né"), read_answer)):
        with pytest.raises(ProtocolError, match="no message of this protocol"):
            read(body(message).replace("é".encode(), b"\xff\xfe"))


@pytest.mark.parametrize("prompts", [[(0, b"", 0)], ((0, b"x", 0),), (("0", b"", 0),), (0,)])
def test_prompts_of_other_types_are_refused(prompts: object) -> None:
    fields = (1, bytes(KEY_BYTES), "s", 16, 0, 0, 0, 1, bytes(40), 0, prompts, 0, 0)
    with pytest.raises((TypeError, ValueError)):
        _core.pack_reserve(*fields)  # type: ignore[arg-type]


def test_a_request_whose_length_has_33_bits_is_refused() -> None:
    """Its rows were copied behind the end of a message of 128 bytes."""

    rows = (2**32 // 40 + 1) * 40

    def pack_too_many() -> None:
        pages = mmap.mmap(-1, rows, mmap.MAP_PRIVATE | MAP_NORESERVE)
        with pytest.raises(ValueError, match=r"a request of 42949\d{5} bytes is longer than a message can be"):
            _core.pack_reserve(1, bytes(KEY_BYTES), "s", 16, 0, 0, 0, 1, pages, 0, None, 0, 0)

    assert in_child(pack_too_many) == 0


def test_a_digest_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes, not 5"):
        pack(Reserve(1, Space(b"short", "s", 16), 0, 1, bytes(40)))
