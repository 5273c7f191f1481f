"""One group of layers in the scheduler's half: which of its pages are worth storing, and what their keys are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from pagetier.client.group_match import GroupKeys
from pagetier.client.groups import Group, Recurrent
from pagetier.client.keys import Keys, Namespace

B = TypeVar("B")


class PagedGroup(msgspec.Struct, frozen=True):
    """One group in the scheduler's half.

    Attributes:
        kind: The kind of its state.
        namespace: The namespace of its pages.
        hashes: The number of vLLM's block hashes in a page.
        strong: Whether the hashes are SHA-256.
        volatile: The number of pages at the end of an unfinished answer that are not stored, and of pages after a hit
            that must be there, too: 1 for a draft model whose state of a token depends on the next token, else 0.
        every_state: Whether a step leaves a recurrent state at the end of each page that it completes, and not only at
            its own end.
        blocks: The number of vLLM's blocks in a page.
        number: The number of vLLM's group whose blocks it has. Some of vLLM's groups have no pages, see cached_groups.
    """

    kind: Group
    namespace: Namespace
    hashes: int
    strong: bool
    volatile: int = 0
    every_state: bool = False
    blocks: int = 1
    number: int = 0

    def with_salt(self, salt: str) -> PagedGroup:
        """Returns the group with another salt of its namespace."""
        return msgspec.structs.replace(self, namespace=msgspec.structs.replace(self.namespace, salt=salt))

    @property
    def block_tokens(self) -> int:
        """The tokens of a block."""
        return self.kind.page_tokens // self.blocks

    def blocks_of(self, table: Sequence[B], page: int) -> Sequence[B]:
        """Returns the blocks of a page, as far as they are in a request's table."""
        return table[page * self.blocks : (page + 1) * self.blocks]

    def first_whole(self, tokens: int) -> int:
        """Returns the first page of which vLLM has all blocks when it has computed `tokens` tokens."""
        return -(-(self.kind.first_kept(tokens) // self.block_tokens) // self.blocks)

    @property
    def has_every_page(self) -> bool:
        """Whether a step leaves the state of each page that it completes."""
        return self.every_state or not isinstance(self.kind, Recurrent)

    def stable(self, tokens: int, prompt_tokens: int) -> int:
        """Returns how many of the first `tokens` tokens have a state that later tokens of the answer do not change."""
        return tokens - self.volatile * self.kind.page_tokens if tokens > prompt_tokens else tokens

    def is_useful(self, page: int, grain: int) -> bool:
        """Returns whether a match could ask for this page. A store skips pages that are not useful."""
        return any(self.kind.useful(page - after, grain) for after in range(self.volatile + 1))

    def after_a_hit(self, keys: Keys) -> Iterator[GroupKeys]:
        """Yields one group for each volatile page: a hit in it needs the page that follows the hit in this group."""
        return (GroupKeys(Recurrent(self.kind.page_tokens), keys[after:]) for after in range(1, self.volatile + 1))

    def keys(self, hashes: Sequence[bytes]) -> Keys:
        """Returns the keys of the pages whose last blocks have these hashes."""
        return self.namespace.keys_of_hashes(hashes) if self.strong else self.namespace.keys_of(hashes)
