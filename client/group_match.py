"""One match over all groups of a model: what it is asked, and what it found."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.groups import EVERYTHING, Group
from pagetier.client.keys import KEY_BYTES, Keys
from pagetier.client.match import Match, MatchHandle
from pagetier.shm._core import Session, miss

_KEY: Final = np.dtype(("V", KEY_BYTES))


class GroupKeys(msgspec.Struct, frozen=True):
    """The keys of one prompt in one group, from the head on.

    Raises ValueError where the keys' namespace has pages of another length than the group.
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
    """What one request counts in the statistics, once.

    Attributes:
        hit_pages: pages that its first match found in memory and needed.
        miss_pages: pages that the longest hit there are keys for would have needed besides.
        memory_tokens: tokens that were loaded up to the first page on disk.
        disk_tokens: tokens that were loaded from that page on.
        missed_tokens: tokens of full pages that neither gave.
    """

    hit_pages: int
    miss_pages: int
    memory_tokens: int
    disk_tokens: int
    missed_tokens: int

    @property
    def asked_tokens(self) -> int:
        """Returns the tokens of the full pages that were looked for."""
        return self.memory_tokens + self.disk_tokens + self.missed_tokens


class GroupMatch(msgspec.Struct, frozen=True, eq=False):
    """The longest hit on which all groups agree, pinned until release() or `with` ends.

    Made by Client.match_groups and Client.find_groups. len() is the number of pages, of all groups together. Pickling
    one gives a tuple of Handovers, one a group.

    Where one group cannot be loaded, all fall back together: release this, and match again (Client.find_groups) with
    the tokens of the last page boundary before what is wanting as the `limit`.

    Attributes:
        groups: what was asked for.
        tokens: the length of the hit. 0 is a miss.
        reach: the same if pages on disk, or on their way from it, are counted as well; `tokens` or more.
        asked: the tokens of the longest hit that there are keys for, within the limit.
        matches: of each group the pages that the hit needs, to be loaded, adopted or handed over like any match.
            The first of them is not always the first of the prompt: see `start_pages`. Its `keys` are those of its
            pages.
    """

    groups: tuple[GroupKeys, ...]
    tokens: int
    available_pages: int
    asked: int
    matches: tuple[Match, ...]

    @property
    def lookup(self) -> Lookup:
        """Returns what a request counts that loads this hit and nothing more."""
        missing = sum(asked.group.missing(self.tokens, self.asked) for asked in self.groups)
        return Lookup(len(self), missing, self.tokens, 0, self.asked - self.tokens)

    @property
    def start_pages(self) -> tuple[int, ...]:
        """Of each group which page of the prompt the first page of its match is."""
        return tuple(asked.group.pages(self.tokens).start for asked in self.groups)

    @property
    def held(self) -> bool:
        """Whether the pages are still pinned."""
        return any(match.held for match in self.matches)

    def to_handle(self) -> tuple[MatchHandle, ...]:
        """For another process of the same engine, which adopts each."""
        return tuple(match.to_handle() for match in self.matches)

    def missing(self) -> bytes:
        """Keys of the pages that `reach` needs and that are not pinned, of all groups, by where they end."""
        behind = [self._behind(asked) for asked in self.groups]
        ends = np.concatenate([ends for ends, _ in behind])
        keys = np.concatenate([keys for _, keys in behind])
        return keys[np.argsort(ends, kind="stable")].tobytes()

    def _behind(self, asked: GroupKeys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
        """Where each page ends, and its key. What is pinned lies before what is not."""
        page_tokens, pages = asked.group.page_tokens, asked.group.pages(self.available_pages)
        first = max(pages.start, self.tokens // page_tokens)
        keys = np.frombuffer(asked.keys[first : pages.stop].data, _KEY)
        return np.arange(first + 1, first + 1 + len(keys), dtype=np.int64) * page_tokens, keys

    def release(self) -> None:
        """Lets go of the pages; may be called again."""
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
        if not self.held and len(self):
            return f"<GroupMatch {self.tokens} tokens of {len(self.groups)} groups, let go>"
        nbytes = sum(int(match.page_sizes.sum()) for match in self.matches)
        more = (
            f", {self.available_pages - self.tokens} more tokens on disk" if self.available_pages > self.tokens else ""
        )
        return f"<GroupMatch {self.tokens} tokens of {len(self.groups)} groups, {nbytes / 2**20:.1f} MiB{more}>"


def missed(groups: Sequence[GroupKeys]) -> GroupMatch:
    """Nothing, for who has no session."""
    return GroupMatch(_checked(groups), 0, 0, 0, tuple(miss(Match, asked.keys[:0], 0) for asked in groups))


def matched(session: Session, groups: Sequence[GroupKeys], limit: int | None) -> GroupMatch:
    """What is in the segments of the session."""
    asked = _checked(groups)
    wanted = tuple((one.keys, one.keys.data, one.group.page_tokens, one.group.needs) for one in asked)
    most = EVERYTHING if limit is None else max(0, min(limit, EVERYTHING))
    return GroupMatch(asked, *session.match_groups(Match, wanted, most))


def _checked(groups: Sequence[GroupKeys]) -> tuple[GroupKeys, ...]:
    if not groups:
        raise ValueError("a match of no groups")
    return tuple(groups)
