"""Tests that each word of a page names its owner, and that a wrong byte is found at any place."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.page_contents import content, wrong

KEYS = [hashlib.sha256(b"%d" % number).digest() for number in range(50)]
SEED = 7


def test_a_page_follows_from_key_seed_and_size() -> None:
    page = content(KEYS[0], SEED, 1000)
    assert len(page) == 1000 and page == content(KEYS[0], SEED, 1000)
    assert page[:96] == content(KEYS[0], SEED, 96)
    assert wrong(page, KEYS[0], SEED) is None


def test_all_words_of_all_pages_and_seeds_differ() -> None:
    pages = [content(key, seed, 4096) for key in KEYS for seed in (SEED, SEED + 1, -1)]
    words = np.concatenate([np.frombuffer(page, np.uint64) for page in pages])
    assert len(np.unique(words)) == len(words)


@given(nbytes=st.integers(1, 300), data=st.data())
def test_the_first_wrong_byte_is_found(nbytes: int, data: st.DataObject) -> None:
    page = bytearray(content(KEYS[0], SEED, nbytes))
    at = data.draw(st.integers(0, nbytes - 1))
    page[at] ^= data.draw(st.integers(1, 255))
    found = wrong(page, KEYS[0], SEED)
    assert found is not None and found.at == at


def test_a_wrong_word_names_its_owner() -> None:
    page = bytearray(content(KEYS[0], SEED, 1024))
    page[512:1024] = content(KEYS[3], SEED, 1024)[:512]
    found = wrong(page, KEYS[0], SEED)
    assert found is not None and found.whose(KEYS, SEED) == KEYS[3] and found.place == 0
    assert "word 0 of the page with tag" in str(found)


def test_bytes_that_were_never_written_have_no_owner() -> None:
    page = bytearray(content(KEYS[0], SEED, 1024))
    page[8:16] = bytes(8)
    found = wrong(page, KEYS[0], SEED)
    assert found is not None and (found.at, found.whose(KEYS, SEED)) == (8, None)
    assert "never written" in str(found)


def test_a_page_with_too_many_words_is_rejected() -> None:
    with pytest.raises(ValueError, match="more words than"):
        content(KEYS[0], SEED, (128 << 20) + 1)
