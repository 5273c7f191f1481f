"""Reservations with an array for each field of their pages, as tests name them."""

from __future__ import annotations

from array import array
from typing import Any

from pagetier.shm._core import KEY_BYTES, Owner, ReservedPages, answer_columns, pack_reserve, page_requests
from pagetier.shm.message_codec import LENGTH, read_reserved
from pagetier.shm.page_rows import PAGE_ANSWERS, PageAnswer
from pagetier.shm.protocol import Reserved

Prompts = tuple[tuple[int, bytes, int], ...] | None


def reserve(  # noqa: PLR0917  what a message and Owner.reserve() take
    owner: Owner,
    slot: int,
    space: int,
    part: int,
    parts: int,
    ttl_ns: int,
    keys: Any,
    sizes: Any,
    prompts: Prompts = None,
    hint: int = 0,
    hint_ttl_ns: int = 0,
) -> ReservedPages:
    """Reserves pages with these keys and sizes, each an array in any buffer. See Owner.reserve()."""
    pages, named = page_requests(keys, sizes), (bytes(KEY_BYTES), "", 0, 0, 0)  # the number names the namespace
    message = pack_reserve(1, *named, part, parts, pages, 0, prompts, hint, hint_ttl_ns)
    response, *_ = owner.reserve(slot, space, ttl_ns, 0, message)
    return answer_columns(read_reserved(response[LENGTH.size :]).pages)


def outcomes_of(answer: Reserved) -> bytes:
    """Returns the outcome of each page."""
    return answer_columns(answer.pages).outcomes


def answer_rows(outcomes: bytes, entries: bytes, serials: bytes) -> bytes:
    """Returns Reserved.pages of outcomes (u8), entries (u32) and serials (u64)."""
    return PAGE_ANSWERS.pack(map(PageAnswer, outcomes, array("I", entries), array("Q", serials)))
