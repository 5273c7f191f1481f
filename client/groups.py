"""Layer groups: layers of a model whose state behaves alike, and the pages that a hit needs of each group."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from pagetier.client.arguments import count_of

EVERYTHING: Final = 2**63 - 1
"""More tokens than any prompt has."""


class Group(msgspec.Struct, frozen=True):
    """Layers of a model whose state behaves alike, cut into pages of their own length.

    A subclass defines `needs`; everything else follows from it. Immutable.

    Attributes:
        page_tokens: The number of tokens in a page, 1 or more: that of the group's Namespace.

    Raises:
        ValueError: `page_tokens` is not an integer from 1 to 2**31-1.
    """

    page_tokens: int

    def __post_init__(self) -> None:
        force_setattr(self, "page_tokens", count_of("page_tokens", self.page_tokens))

    @property
    def needs(self) -> int:
        """The number of tokens before a hit whose state must be cached. Since pages are whole, a hit may need more.

        Raises:
            NotImplementedError: The subclass does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__}.needs")

    def pages(self, tokens: int) -> range:
        """Returns the pages that a hit at `tokens` needs.

        The caller guarantees that it is a multiple of page_tokens.
        """
        return range(max(0, tokens - self.needs) // self.page_tokens, tokens // self.page_tokens)

    def first_kept(self, tokens: int) -> int:
        """Returns the first token whose state an engine keeps when it has computed `tokens` tokens."""
        return max(0, tokens - self.needs)

    def missing(self, tokens: int, wanted: int) -> int:
        """Returns how many pages a hit at `wanted` tokens needs in addition to those of a hit at `tokens`."""
        pages = self.pages(wanted)
        return pages.stop - max(pages.start, tokens // self.page_tokens)

    def useful(self, page: int, grain: int) -> bool:
        """Returns whether a hit at any multiple of `grain` tokens could need this page.

        A store skips pages that are not useful.
        """
        ends = (page + 1) * self.page_tokens
        step = math.lcm(grain, self.page_tokens)
        return -ends % step < self.needs


def grain_of(groups: Iterable[Group]) -> int:
    """Returns the number of tokens of which the length of every hit is a multiple."""
    return math.lcm(*(group.page_tokens for group in groups))


class FullAttention(Group, frozen=True):
    """Full attention (MHA, GQA, MLA): a hit needs every page before it."""

    @property
    def needs(self) -> int:
        """All tokens before the hit."""
        return EVERYTHING


class SlidingWindow(Group, frozen=True):
    """Sliding-window attention: a hit needs the pages with the last `window` - 1 tokens before it.

    The next token also attends to itself, which is the remaining token of its window.

    Attributes:
        window: The number of tokens that a token attends to, itself included; 1 or more.

    Raises:
        ValueError: `window` or `page_tokens` is not an integer from 1 to 2**31-1.
    """

    window: int

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "window", count_of("window", self.window))

    @property
    def needs(self) -> int:
        """The tokens that the next token attends to, except itself."""
        return self.window - 1


class ChunkedAttention(Group, frozen=True):
    """Attention within chunks of a prompt (chunked local attention): a token attends to those of its chunk before it.

    A hit within a chunk needs the tokens from the chunk's begin. A match asks for the pages with the last `chunk` - 1
    tokens wherever the hit ends; an engine loads those of them that it keeps.

    Attributes:
        chunk: The number of tokens in a chunk, 1 or more.

    Raises:
        ValueError: `chunk` or `page_tokens` is not an integer from 1 to 2**31-1.
    """

    chunk: int

    def __post_init__(self) -> None:
        super().__post_init__()
        force_setattr(self, "chunk", count_of("chunk", self.chunk))

    @property
    def needs(self) -> int:
        """The most tokens of its chunk that are before a token."""
        return self.chunk - 1

    def first_kept(self, tokens: int) -> int:
        """Returns the first token of the chunk of the next token."""
        return tokens // self.chunk * self.chunk


class Recurrent(Group, frozen=True):
    """Recurrent state: a page is a snapshot of the state at its end, and a hit needs the snapshot at its last token."""

    @property
    def needs(self) -> int:
        """The last token, and so the page that ends with it."""
        return 1
