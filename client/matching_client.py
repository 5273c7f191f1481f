"""Finding and pinning the longest cached prefix of a prompt in shared memory, without asking the daemon."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagetier.client.attached_client import AttachedClient
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup, matched, missed
from pagetier.client.groups import EVERYTHING
from pagetier.client.keys import Keys
from pagetier.client.match import Match, MatchHandle
from pagetier.client.misuse import Misuse, reject_keys, require_keys
from pagetier.shm._core import KEY_BYTES, Session, miss


class MatchingClient(AttachedClient):
    """A client that finds and pins pages: the part of Client that never waits for the daemon."""

    def match(self, keys: Keys) -> Match:
        """Returns the longest cached prefix of the keys, pinned until it is released.

        The call sends no message and waits for no other process. It counts as one lookup; a request that matches again
        calls rematch(). Pinned pages count as tokens from memory, pages after them in the tier where they were found
        once load() has copied them, and all others as missed.

        The prefix ends early at a page that this client has pinned 65,535 times already, and where the pins of this
        process reach the quota `match.share`. Without a daemon, a process that was attached still finds the pages in
        the segments that it has mapped; before its first attachment every key is a miss.

        Args:
            keys: The keys from the first page of the prompt on.
        """
        session = self._attachment.session
        if session is None or not session.usable:
            self._own_attachment()
            return self._miss(keys)
        try:
            return session.match(Match, keys, keys.data, keys.namespace.page_tokens)
        except AttributeError as error:
            reject_keys(keys, error)

    def find(self, keys: Keys) -> Match:
        """Returns the same as match(), with the same argument, and does not count a lookup.

        For an engine that counts a request with count_lookup(). Loading the match counts no tokens.
        """
        require_keys(keys, "find()")
        session = self._attachment.session
        if session is None or not session.usable:
            self._own_attachment()
            return self._miss(keys)
        return self._rematch(session, keys, miss(Match, keys, 0))

    def _miss(self, keys: Keys) -> Match:
        if self._closed:
            self.misuse.report(Misuse.CLOSED)
        if not isinstance(keys, Keys):
            reject_keys(keys, AttributeError())
        return miss(Match, keys, len(keys))

    def rematch(self, match: Match) -> Match:
        """Returns a second match of the same keys for the same request, for example after a prefetch.

        It does not count as another lookup. Pages that reached memory since then count in the tier where `match` found
        them, unless `match` is released. Release both matches. A match that another process handed over has no keys:
        the result is a miss. Never waits.
        """
        keys, session = match.keys, match.session
        if keys is None or session is None or not session.usable:
            return miss(Match, keys, match.asked)
        longer = self._rematch(session, keys, match)
        match.count_loaded(len(longer))
        return longer

    def match_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Returns the longest hit on which all layer groups of a model agree, pinned until it is released.

        The call sends no message and waits for nothing. It counts as one lookup, and all tokens after the hit count as
        missed. An engine that matches a request several times uses find_groups() and count_lookup() instead. Raises
        ValueError if there are no groups, or more than 64.

        Args:
            groups: The keys of one prompt in each group; at most 64.
            limit: The number of tokens that the hit may have at most; None for no limit.
        """
        match = self.find_groups(groups, limit)
        self.count_lookup(match.lookup)
        self.sample_lookup(match)
        return match

    def find_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Returns the same as match_groups(), with the same arguments and errors, and does not count a lookup."""
        session = self._attachment.session
        if session is None or not session.usable:
            self._own_attachment()
            return missed(groups)
        return matched(session, groups, limit)

    def count_lookup(self, lookup: Lookup) -> None:
        """Counts the lookup of a request that was matched with find_groups(), once its outcome is known."""
        session = self._attachment.session
        if session is not None:
            session.count_lookup(*msgspec.structs.astuple(lookup))

    def sample_lookup(self, match: GroupMatch) -> None:
        """Lets the daemon learn what a request looked up, for `pagetier advise`: once, with its first match.

        It is for a match of find_groups(); match() and match_groups() do it themselves. Only groups count whose pages
        are useless without those before them. Sends no message.
        """
        session = self._attachment.session
        if session is None:
            return
        for asked in match.groups:
            if asked.group.needs == EVERYTHING:
                page_tokens = asked.group.page_tokens
                keys = asked.keys.data[: match.asked // page_tokens * KEY_BYTES]
                session.sample(keys, min(match.available_tokens // page_tokens, len(keys) // KEY_BYTES))

    def adopt(self, handle: MatchHandle) -> Match:
        """Returns a match of another process of the same engine, pinned by this process too. Never waits.

        The match ends before the first page that was evicted since the other process pinned it. It is empty if this
        process is not attached to the same segments. Its `keys` are None, so load() copies pinned pages only.

        Args:
            handle: The handle that Match.to_handle(), or pickling the match, gave. The other process keeps its match
                until this call has returned.
        """
        session = self._own_attachment().session
        if session is None or session.segments_id != handle.segments_id:
            return miss(Match, handle.page_tokens, len(handle))
        return session.repin(Match, handle.page_tokens, handle.entries, handle.serials)

    def _rematch(self, session: Session, keys: Keys, match: Match) -> Match:
        return session.rematch(Match, keys, keys.data, match)
