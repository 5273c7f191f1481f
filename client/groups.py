"""Groups of KV state: layers that behave alike, and one match over all groups of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec

EVERYTHING: Final = 2**63 - 1
"""More tokens than any prompt has."""


class Group(msgspec.Struct, frozen=True):
    """Layers of a model whose state behaves alike, cut into pages of their own size.

    A type of group says one thing, `needs`; all else follows from it.

    Attributes:
        page_tokens: tokens in a page, 1 or more: those of the group's Namespace.
    """

    page_tokens: int

    def __post_init__(self) -> None:
        require_count("page_tokens", self.page_tokens)

    @property
    def needs(self) -> int:
        """How many tokens before a hit must be there; pages are whole, so it may be some more."""
        raise NotImplementedError(f"{type(self).__name__}.needs")

    def pages(self, tokens: int) -> range:
        """The pages that a hit at `tokens` needs. The caller guarantees that it is a multiple of page_tokens."""
        return range(max(0, tokens - self.needs) // self.page_tokens, tokens // self.page_tokens)

    def missing(self, tokens: int, wanted: int) -> int:
        """Returns how many pages that a hit at `wanted` tokens needs lie behind one at `tokens`."""
        pages = self.pages(wanted)
        return pages.stop - max(pages.start, tokens // self.page_tokens)

    def useful(self, page: int, grain: int) -> bool:
        """Whether any hit at a multiple of `grain` tokens could need this page: a store skips the others."""
        ends = (page + 1) * self.page_tokens
        step = math.lcm(grain, self.page_tokens)
        return -ends % step < self.needs


def grain_of(groups: Iterable[Group]) -> int:
    """What the tokens of every hit are a multiple of."""
    return math.lcm(*(group.page_tokens for group in groups))


def require_count(what: str, value: int) -> None:
    """Raises ValueError for what is no number of tokens that the index can count."""
    if type(value) is not int or not 1 <= value < 2**31:
        raise ValueError(f"{what} must be 1 or more and below 2**31, not {value!r}")


class FullAttention(Group, frozen=True):
    """MHA, GQA, MLA: a hit needs every page up to it."""

    @property
    def needs(self) -> int:
        """All there are."""
        return EVERYTHING


class SlidingWindow(Group, frozen=True):
    """A hit needs the pages with the last window - 1 tokens before it: the next token sees itself, too.

    Attributes:
        window: tokens that a token sees, itself among them; 1 or more.
    """

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("window", self.window)

    @property
    def needs(self) -> int:
        """What the next token sees besides itself."""
        return self.window - 1


class Recurrent(Group, frozen=True):
    """A page is a snapshot of the state at its end; a hit needs the one that ends just there."""

    @property
    def needs(self) -> int:
        """The last token, and so the page that ends with it."""
        return 1
