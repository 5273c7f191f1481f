"""Tests how the pages of a request are divided into prompts."""

from __future__ import annotations

import pytest

from pagetier.daemon.index.chains import Chain, chains_of, wrong_chains
from pagetier.shm._core import KEY_BYTES, ChainKind
from pagetier.shm.protocol import Reserve, Space

PARENT = b"p" * KEY_BYTES


def request(chains: tuple[tuple[int, bytes], ...] | None, pages: int = 5) -> Reserve:
    return Reserve(1, Space(bytes(KEY_BYTES), "s", 16), 0, 1, bytes(KEY_BYTES * pages), bytes(8 * pages), 0, chains)


def test_each_prompt_is_a_chain() -> None:
    both = request(((0, b""), (3, PARENT)))
    whole, first = (
        [Chain(0, 3, ChainKind.PROMPT), Chain(3, 5, ChainKind.PROMPT, PARENT)],
        [Chain(0, 2, ChainKind.PROMPT)],
    )
    assert (list(chains_of(both, 5)), list(chains_of(both, 2))) == (whole, first)
    assert not list(chains_of(both, 0)) and not wrong_chains(both)


def test_without_prompts_pages_stand_alone_or_are_unknown() -> None:
    assert list(chains_of(request(()), 5)) == [Chain(0, 5, ChainKind.NONE)]
    assert list(chains_of(request(None), 5)) == [Chain(0, 5, ChainKind.UNKNOWN)]


@pytest.mark.parametrize(
    "chains",
    [
        ((1, b""),),
        ((0, b""), (0, b"")),
        ((0, b""), (5, b"")),
        ((0, b""), (-1, b"")),
        ((0, b"short"),),
        ((0, b""), (3, b""), (2, b"")),
    ],
    ids=str,
)
def test_wrong_prompts_are_rejected(chains: tuple[tuple[int, bytes], ...]) -> None:
    assert wrong_chains(request(chains))


def test_a_request_without_pages_may_name_a_prompt() -> None:
    assert not wrong_chains(request(((0, b""),), pages=0))
