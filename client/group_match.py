"""One match over all layer groups of a model: its request and its result."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.groups import EVERYTHING, FullAttention, Group
from pagetier.client.keys import Keys
from pagetier.client.match import Match, MatchHandle
from pagetier.shm._core import Session, miss
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.row_arrays import keys_of


class GroupKeys(msgspec.Struct, frozen=True):
    """The keys of one prompt in one group, from the first page on.

    Attributes:
        group: The group.
        keys: The keys. Their namespace has the group's page length.

    Raises:
        ValueError: The pages of the keys' namespace have another number of tokens than those of the group.
    """

    group: Group
    keys: Keys

    def __post_init__(self) -> None:
        if self.keys.namespace.page_tokens != self.group.page_tokens:
            raise ValueError(
                f"pages of {self.group!r} have {self.group.page_tokens} tokens,"
                f" those of {self.keys.namespace.name} {self.keys.namespace.page_tokens}"
            )


class Lookup(msgspec.Struct, frozen=True):
    """The counts that one request adds to the statistics, once.

    The tokens are those that its lookup has found. An engine that learns only later how many it
    has loaded may count those instead.

    Attributes:
        hit_pages: Pages that the first match of the request found in memory and needed.
        miss_pages: Further pages that the longest hit with keys would have needed.
        memory_tokens: Tokens that were found, up to the first page that was on disk.
        disk_tokens: Tokens that were found from that page on, except for those of the fleet.
        missed_tokens: Tokens of full pages that were not found.
        remote_tokens: Tokens that were found from the first page on that came from the fleet.
        memory_slower_tokens: Those of the missed tokens that are in memory, and are computed because that is faster.
        disk_slower_tokens: The same of those that are only on disk.
        remote_slower_tokens: The same of those that are only in the fleet.
    """

    hit_pages: int
    miss_pages: int
    memory_tokens: int
    disk_tokens: int
    missed_tokens: int
    remote_tokens: int = 0
    memory_slower_tokens: int = 0
    disk_slower_tokens: int = 0
    remote_slower_tokens: int = 0

    @property
    def asked_tokens(self) -> int:
        """The tokens of the full pages that were looked up."""
        return self.memory_tokens + self.disk_tokens + self.remote_tokens + self.missed_tokens


class GroupMatch(msgspec.Struct, frozen=True, eq=False):
    """The longest hit on which all groups agree, pinned until release() or the end of a `with` block.

    Made by Client.match_groups() and Client.find_groups(). len() is the number of pinned pages of all groups together.
    Pickling it gives a tuple of MatchHandle, one for each group. One thread at a time may use it.

    If one group cannot be loaded, all groups fall back together: release this match, and call Client.find_groups() with
    the tokens of the last page boundary before the missing page as `limit`.

    Attributes:
        groups: The groups and keys that were looked up.
        tokens: The length of the hit in tokens; 0 for a miss.
        available_tokens: The length in tokens of the hit if pages on disk, or being read from disk, count too; `tokens`
            or more.
        asked: The length in tokens of the longest hit that the keys and the limit allow.
        matches: For each group, a match of the pages that the hit needs. It is loaded, adopted or handed over like any
            other match. Its first page is the page `start_pages` of the prompt, and its `keys` are those of its pages.
    """

    groups: tuple[GroupKeys, ...]
    tokens: int
    available_tokens: int
    asked: int
    matches: tuple[Match, ...]

    @property
    def lookup(self) -> Lookup:
        """The counts of a request that loads exactly this hit."""
        missing = sum(asked.group.missing(self.tokens, self.asked) for asked in self.groups)
        return Lookup(len(self), missing, self.tokens, 0, self.asked - self.tokens)

    @property
    def start_pages(self) -> tuple[int, ...]:
        """For each group, the page of the prompt that is the first page of its match."""
        return tuple(asked.group.pages(self.tokens).start for asked in self.groups)

    @property
    def pinned(self) -> bool:
        """Whether pages of the match are still pinned."""
        return any(match.pinned for match in self.matches)

    def to_handle(self) -> tuple[MatchHandle, ...]:
        """Returns a handle for each group. Another process of the same engine passes each of them to adopt()."""
        return tuple(match.to_handle() for match in self.matches)

    def first_key_after(self, tokens: int) -> bytes:
        """Returns the key of the page after the first `tokens` tokens in the first group, which has it."""
        first = self.groups[0]
        return first.keys[tokens // first.group.page_tokens]

    def missing(self, tokens: int | None = None) -> bytes:
        """Returns the keys of the pages that a hit needs in addition to the pages of this match, 32 bytes each.

        The pages of all groups are sorted by the position of their last token.

        Args:
            tokens: The length of the hit, at least that of this match; None for `available_tokens`.
        """
        wanted = self.available_tokens if tokens is None else tokens
        unpinned = [self._unpinned(asked, wanted) for asked in self.groups]
        ends = np.concatenate([ends for ends, _ in unpinned])
        keys = np.concatenate([keys for _, keys in unpinned])
        return keys[np.argsort(ends, kind="stable")].tobytes()

    def _unpinned(self, asked: GroupKeys, tokens: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """Returns the end of each page that is not pinned, in tokens, and its key. Pinned pages come before them."""
        page_tokens, pages = asked.group.page_tokens, asked.group.pages(tokens)
        first = max(pages.start, self.tokens // page_tokens)
        keys = keys_of(asked.keys[first : pages.stop].data)
        return np.arange(first + 1, first + 1 + len(keys), dtype=np.int64) * page_tokens, keys

    def release(self) -> None:
        """Unpins the pages. May be called again."""
        for match in self.matches:
            match.release()

    def __len__(self) -> int:
        return sum(map(len, self.matches))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (self.to_handle(),)

    def __repr__(self) -> str:
        if not self.pinned and len(self):
            return f"<GroupMatch {self.tokens} tokens of {len(self.groups)} groups, released>"
        nbytes = sum(int(match.page_sizes.sum()) for match in self.matches)
        on_disk = self.available_tokens - self.tokens
        more = f", {on_disk} more tokens on disk" if on_disk else ""
        return f"<GroupMatch {self.tokens} tokens of {len(self.groups)} groups, {nbytes / 2**20:.1f} MiB{more}>"


def missed(groups: Sequence[GroupKeys]) -> GroupMatch:
    """Returns a miss, for a client without a session. Raises ValueError if there are no groups."""
    return GroupMatch(_checked(groups), 0, 0, 0, tuple(miss(Match, asked.keys[:0], 0) for asked in groups))


def matched(session: Session, groups: Sequence[GroupKeys], limit: int | None) -> GroupMatch:
    """Returns the longest hit in the segments of the session, at most `limit` tokens long.

    Raises ValueError if there are no groups, or more than 64.
    """
    asked = _checked(groups)
    wanted = tuple((one.keys, one.keys.data, one.group.page_tokens, one.group.needs) for one in asked)
    most = EVERYTHING if limit is None else max(0, min(limit, EVERYTHING))
    return GroupMatch(asked, *session.match_groups(Match, wanted, most))


def group_of(match: Match, end_page: int) -> GroupMatch:
    """Returns a match with keys as one of a single group, without the pages after `end_page`. It pins nothing itself.

    Args:
        match: The match, whose first page is the first one of the prompt.
        end_page: The end of what is looked for, at least that of the pinned pages.
    """
    keys, page_tokens = match.keys, match.page_tokens
    asked = () if keys is None else (GroupKeys(FullAttention(page_tokens), keys[:end_page]),)
    available = min(match.available_pages, end_page) * page_tokens
    return GroupMatch(asked, match.tokens, available, end_page * page_tokens, (match,))


def sample(session: Session, match: GroupMatch) -> None:
    """Lets the daemon learn what a request looked up, in the groups whose pages are useless without those before."""
    for asked in match.groups:
        if asked.group.needs == EVERYTHING:
            page_tokens = asked.group.page_tokens
            keys = PAGE_KEYS.part(asked.keys.data, 0, match.asked // page_tokens)
            session.sample(keys, min(match.available_tokens // page_tokens, PAGE_KEYS.count(keys)))


def _checked(groups: Sequence[GroupKeys]) -> tuple[GroupKeys, ...]:
    if not groups:
        raise ValueError("a match needs at least one group")
    for one in groups:
        _require_group_keys(one)
    return tuple(groups)


def _require_group_keys(one: object) -> None:
    if not isinstance(one, GroupKeys):
        kind = type(one).__name__
        raise TypeError(f"a group is GroupKeys, not {kind}: write match_groups([GroupKeys(group, keys), ...])")
