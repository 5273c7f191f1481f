"""The tokens of a sequence, and the keys of their pages in each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.group_match import GroupKeys
from pagetier.client.groups import Group
from pagetier.client.hashing import Tokens, token_ids
from pagetier.client.keys import Namespace


class PageGroup(msgspec.Struct, frozen=True):
    """The pages of one half of the state: which of them a hit needs, and their namespace."""

    group: Group
    namespace: Namespace


class SequenceTokens:
    """The tokens of a sequence from its first position on.

    Args:
        ids: The tokens. Those with negative IDs have no keys.
        groups: The keys of the full pages in each group.

    Attributes:
        groups: The keys of the full pages in each group; empty if the sequence cannot be cached.
        stored: The number of first pages of which nothing is left to store.
        decoded: The number of positions that the sequence had when its pages were stored last.
    """

    def __init__(self, ids: npt.NDArray[np.integer], groups: Sequence[GroupKeys]) -> None:
        self.groups, self.stored, self.decoded = tuple(groups), 0, 0
        self._ids = ids

    @classmethod
    def of(cls, tokens: Tokens, groups: Sequence[PageGroup]) -> Self:
        """Returns the tokens with their keys, without keys if some stand for an image or the like."""
        ids = _ids_of(tokens)
        if ids is None:
            return cls(np.array(tokens), ())
        return cls(ids, [GroupKeys(one.group, one.namespace.keys(ids)) for one in groups])

    def grown(self, tokens: Tokens) -> SequenceTokens:
        """Returns these tokens and those after them; without keys if the sequence began with others."""
        ids = _ids_of(tokens)
        if ids is None or not np.array_equal(ids[: len(self)], self._ids):
            return SequenceTokens(self._ids[:0], ())
        grown = SequenceTokens(ids, [_longer(one, ids) for one in self.groups])
        grown.stored, grown.decoded = self.stored, self.decoded
        return grown

    def __len__(self) -> int:
        return len(self._ids)


def _ids_of(tokens: Tokens) -> npt.NDArray[np.uint32] | None:
    """Returns a copy of the tokens; None if some are negative."""
    given = np.asarray(tokens)
    if given.dtype.kind == "i" and given.size and int(given.min()) < 0:
        return None
    return token_ids(tokens).copy()


def _longer(keys: GroupKeys, ids: npt.NDArray[np.uint32]) -> GroupKeys:
    known = len(keys.keys) * keys.group.page_tokens
    return GroupKeys(keys.group, keys.keys.namespace.keys(ids[known:], after=keys.keys))
