"""Tests what a store and a load of 64 pages cost the calling thread, in executed instructions of Python."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from counted_instructions import instructions_of
from keyed_pages import prompt
from pagetier.client import Client, Keys

PAGES, SIZE, TIMES = 64, 64, 3
MOST_STORE: Final = 2300  # 2196 by CPython 3.11, and 2421 before
MOST_LOAD: Final = 750  # 705 by CPython 3.11, and 1328 before
pytestmark = pytest.mark.usefixtures("empty_daemon")  # prompts have the same numbers in all tests


def test_a_store_and_a_load_cost_few_instructions(client: Client) -> None:
    memory = np.zeros((PAGES, SIZE), np.uint8)

    def stored(keys: Keys) -> int:
        return instructions_of(lambda: client.store(keys, memory))

    def loaded(keys: Keys) -> int:
        with client.match(keys) as match:
            assert len(match) == PAGES
            return instructions_of(lambda: client.load(match, memory))

    prompts = [prompt(number, PAGES) for number in range(TIMES)]  # the first one fills caches
    assert 0 < min(map(stored, prompts)) < MOST_STORE  # a late response costs more
    assert 0 < min(map(loaded, prompts)) < MOST_LOAD
