"""Tests how a request says which page is before which in its prompt."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest

from anonymous_segments import DAY_NS
from learning_index import FRAME, LearningIndex
from pagetier.daemon.index.reservations import wrong_prompts
from pagetier.shm._core import KEY_BYTES, HintKind, ReserveOutcome, answer_columns, page_requests
from pagetier.shm.message_codec import LENGTH, pack, read_reserved
from pagetier.shm.page_rows import PAGE_REQUESTS
from pagetier.shm.protocol import REQUEST_LIMIT, Prompt, Reserve, Space

SPACE = Space(bytes(KEY_BYTES), "test", 16, 0, 0)
PARENT = bytes(KEY_BYTES)
Prompts = tuple[Prompt, ...] | None


def request(pages: int, prompts: Prompts) -> Reserve:
    sizes = np.full(pages, FRAME, np.uint64).tobytes()
    return Reserve(1, SPACE, 0, 1, page_requests(os.urandom(pages * KEY_BYTES), sizes), 0, prompts)


def answer(engine: LearningIndex, asked: Reserve, pages: int) -> bytes:
    """Reserves the first pages of a request. Returns their outcomes."""
    space = engine.owner.space(SPACE.digest, "test", 16, 0, 0)
    count = PAGE_REQUESTS.count(asked.pages)
    response, _, granted, _, full, _ = engine.owner.reserve(engine.slot, space, DAY_NS, count - pages, pack(asked))
    outcomes = answer_columns(read_reserved(response[LENGTH.size :]).pages).outcomes
    assert len(outcomes) == count and full == outcomes[:pages].count(ReserveOutcome.REFUSED_FULL)
    assert granted == outcomes.count(ReserveOutcome.GRANTED)
    assert outcomes[pages:] == bytes([ReserveOutcome.REFUSED_FULL]) * (len(outcomes) - pages)
    return outcomes[:pages]


@pytest.mark.parametrize(
    "prompts",
    [
        (Prompt(1),),
        (Prompt(-1),),
        (Prompt(0), Prompt(0)),
        (Prompt(0), Prompt(3), Prompt(2)),
        (Prompt(0), Prompt(4)),
        (Prompt(0, b"x"),),
    ],
)
def test_wrong_prompts_are_rejected(prompts: Prompts) -> None:
    assert wrong_prompts(request(4, prompts))


def test_the_reason_of_a_rejection_is_short() -> None:
    assert len(wrong_prompts(request(4, (Prompt(0), *(Prompt(1),) * 100_000)))) < 200


@pytest.mark.parametrize("prompts", [None, (), (Prompt(0),), (Prompt(0, PARENT, 2**70), Prompt(3, depth=-7))])
@pytest.mark.parametrize("pages", [0, 1, 3, 4])
def test_the_first_pages_of_a_request_are_reserved(prompts: Prompts, pages: int) -> None:
    asked = request(4, prompts)
    assert not wrong_prompts(asked)
    assert answer(LearningIndex(32), asked, pages) == bytes([ReserveOutcome.GRANTED]) * pages


@pytest.mark.parametrize("prompts", [(Prompt(1),), (Prompt(0), Prompt(0)), (Prompt(0), Prompt(3), Prompt(2))])
def test_the_core_takes_no_prompts_that_do_not_divide_the_pages(prompts: Prompts) -> None:
    with pytest.raises(ValueError, match="do not divide the pages"):
        answer(LearningIndex(32), request(4, prompts), 4)


def test_the_core_takes_no_other_message_and_refuses_no_more_pages_than_it_has() -> None:
    engine, asked = LearningIndex(32), request(4, None)
    for message, refused in ((pack(asked)[:-1], 0), (b"", 0), (pack(asked) + b"1", 0), (pack(asked), 5)):
        with pytest.raises(ValueError, match="no reservation of so many pages"):
            engine.owner.reserve(engine.slot, 0, DAY_NS, refused, message)
    assert not engine.owner.open_entries


def test_the_longest_request_of_prompts_of_one_page_is_answered() -> None:
    """With a step for each pair of prompts it would take hours, and be ended."""
    engine = LearningIndex(16384)
    answer(engine, request(16384, None), 16384)  # all are being written
    asked = request(190_000, tuple(Prompt(page) for page in range(190_000)))
    assert REQUEST_LIMIT * 0.8 < len(pack(asked)) < REQUEST_LIMIT
    assert not wrong_prompts(asked) and answer(engine, asked, 190_000).count(ReserveOutcome.REFUSED_FULL) == 190_000


@pytest.mark.parametrize("ttl", [-1.0, -1e308, 1e308, float("-inf"), float("inf"), float("nan")])
def test_the_time_to_live_of_no_hint_is_any_number(ttl: float) -> None:
    asked = msgspec.structs.replace(request(1, ()), hint=HintKind.NONE, hint_ttl=ttl)
    assert answer(LearningIndex(32), asked, 1) == bytes([ReserveOutcome.GRANTED])
