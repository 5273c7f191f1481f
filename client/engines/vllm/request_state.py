"""What the scheduler's half knows of one request: the keys of its pages, its blocks, and what was found for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from pagetier.client.engines.vllm.prefetch import Asked
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup
from pagetier.client.groups import Group
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Match, MatchHandle

_NEVER: Final = 2**62


class PagedGroup(msgspec.Struct, frozen=True):
    """One group as the scheduler sees it.

    hashes: vLLM's block hashes in a page of it. strong: whether they are SHA-256.
    """

    kind: Group
    namespace: Namespace
    hashes: int
    strong: bool

    def keys(self, hashes: Sequence[bytes]) -> Keys:
        """Of pages whose last block has this hash."""
        return self.namespace.keys_of_hashes(hashes) if self.strong else self.namespace.keys_of(hashes)


class PinnedHit(msgspec.Struct, frozen=True, eq=False):
    """Pages that are pinned for a request. tokens: how many it may load. from_memory: of these, without the disk."""

    match: GroupMatch
    tokens: int
    from_memory: int
    since: float


class Taken(msgspec.Struct, frozen=True):
    """Tokens that a request loads. from_memory: those of them that were found without the disk."""

    tokens: int
    from_memory: int


NOTHING: Final = Taken(0, 0)


class Tracked:
    """One request, from its first match to its end.

    found: what is pinned for it. stored: for each group the first page that was not ordered to be stored yet. tables:
    for each group the blocks of the pages. failures: loads that failed. offered: tokens that vLLM was last told it can
    load. into: blocks that are loaded. computed: tokens that vLLM had itself when it last asked. lookup: what the first
    match found, for the statistics. taken: what is being loaded, until the load fails. counted: whether the statistics
    have the request.
    """

    def __init__(self, request: Any, groups: Sequence[PagedGroup]) -> None:
        self.request = request
        self.groups = groups
        self.found: PinnedHit | None = None
        self.prefetch: Asked | None = None
        self.gives_up = 0.0
        self.from_memory = -1
        self.loading = False
        self.failures = 0
        self.offered = 0
        self.computed = 0
        self.lookup: Lookup | None = None
        self.taken = NOTHING
        self.counted = False
        self.into: frozenset[int] = frozenset()
        self.stored = [0] * len(groups)
        self.tables: list[list[int]] = [[] for _ in groups]
        self._keys = [Keys(group.namespace, b"") for group in groups]
        self._hashed = 0
        self._last = b""

    @property
    def keys(self) -> list[Keys]:
        """Of all pages that vLLM has hashed by now, for each group."""
        hashes = self.request.block_hashes
        if self._hashed and hashes[self._hashed - 1 : self._hashed] != [self._last]:
            self._begin_anew(hashes)
        elif len(hashes) > self._hashed:
            self._keys = [self._grown(at, hashes, self._keys[at]) for at in range(len(self.groups))]
        self._hashed, self._last = len(hashes), hashes[-1] if hashes else b""
        return self._keys

    def group_keys(self) -> list[GroupKeys]:
        """For a match."""
        return [GroupKeys(group.kind, keys) for group, keys in zip(self.groups, self.keys, strict=True)]

    def is_there(self, tokens: int) -> None:
        """So much of it need not be stored."""
        for at, group in enumerate(self.groups):
            self.stored[at] = max(self.stored[at], tokens // group.kind.page_tokens)

    @property
    def is_stale(self) -> bool:
        """Whether its keys are those of other weights."""
        return self.stored[0] == _NEVER

    def grow_stale(self) -> None:
        """The weights have changed: nothing more of it is stored."""
        self.stored = [_NEVER] * len(self.groups)

    def let_go(self) -> None:
        """Of what was found."""
        if self.found is not None and not self.loading:
            self.found.match.release()
            self.found = None

    def loaded(self) -> None:
        """The workers have loaded what was found, or could not."""
        self.loading = False
        self.from_memory = -1
        self.taken = NOTHING
        self.let_go()

    def _begin_anew(self, hashes: Sequence[bytes]) -> None:
        """A session went on behind another token than the one it had: hashes that were there are others now."""
        self.let_go()
        for at, group in enumerate(self.groups):
            before = self._keys[at]
            after = self._keys[at] = self._grown(at, hashes, Keys(group.namespace, b""))
            self.stored[at] = min(self.stored[at], _alike(before, after))

    def _grown(self, at: int, hashes: Sequence[bytes], keys: Keys) -> Keys:
        group = self.groups[at]
        more = hashes[(len(keys) + 1) * group.hashes - 1 :: group.hashes]
        return Keys(group.namespace, keys.data + group.keys(more).data)


def _alike(one: Keys, other: Keys) -> int:
    """How many keys both begin with."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def some_of(match: Match, pages: Sequence[int]) -> MatchHandle:
    """Some pages of a match, by their places in it."""
    whole = match.to_handle()
    if not len(whole):
        return whole
    entries = np.frombuffer(whole.entries, np.uint32)[list(pages)]
    serials = np.frombuffer(whole.serials, np.uint64)[list(pages)]
    return MatchHandle(whole.segments_id, entries.tobytes(), serials.tobytes())
