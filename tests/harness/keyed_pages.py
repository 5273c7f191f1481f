"""Keys of prompts, and pages with content that follows from their keys."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from eventually import PATIENCE_S
from oracle.page_contents import words, wrong
from pagetier.client import Client, Keys, StoreResult
from pagetier.client.adapters import Part
from pagetier.client.paged_blocks import WHOLE
from running_daemon import namespace

SEED = 7
TOKENS = 16
PAGE = 64 << 10
SPACE = namespace(TOKENS)


def prompt(number: int, pages: int = 8) -> Keys:
    """Returns the keys of a prompt that shares no page with prompts of other numbers."""
    first = number << 20
    return SPACE.keys(range(first, first + TOKENS * pages))


def page_of(key: bytes, size: int = PAGE) -> npt.NDArray[np.uint8]:
    """Returns the content of the page with this key."""
    return words(key, SEED, size).view(np.uint8)[:size]


def pages_of(keys: Keys, size: int = PAGE, part: Part = WHOLE) -> list[npt.NDArray[np.uint8]]:
    """Returns the content of each page, or this part of it."""
    share = size // part.count
    return [page_of(key, size)[part.index * share : (part.index + 1) * share] for key in keys]


def store(client: Client, keys: Keys, size: int = PAGE, part: Part = WHOLE, timeout: float = PATIENCE_S) -> StoreResult:
    """Stores pages with their content."""
    return client.store(keys, pages_of(keys, size, part), part, timeout)


def found(client: Client, keys: Keys, size: int = PAGE, timeout: float = PATIENCE_S) -> int:
    """Loads pages of a prompt from memory or disk, compares every byte, and returns the number of pages."""
    out = np.zeros((len(keys), size), np.uint8)
    with client.match(keys) as match:
        loaded = client.load(match, out, timeout=timeout)
    assert_exact(keys, out[:loaded])
    return loaded


def in_memory(client: Client, keys: Keys) -> int:
    """Returns how many pages of a prompt a match finds in memory."""
    with client.match(keys) as match:
        return len(match)


def assert_exact(keys: Iterable[bytes], pages: Iterable[npt.NDArray[np.uint8]]) -> None:
    """Asserts that the pages, counted from the head of the prompt, have their content."""
    for key, page in zip(keys, pages, strict=False):
        error = wrong(page, key, SEED)
        assert error is None, f"page {key.hex()[:16]}: {error}"
