"""Lookups of engine adapters: those that are counted once their outcome is known, and matches of other processes.

They are for the session of a client, Client.session, and send no message. Without one they find and count nothing.
"""

from __future__ import annotations

import msgspec

from pagetier.client.group_match import GroupMatch, Lookup, sample
from pagetier.client.keys import Keys, require_keys
from pagetier.client.match import Match, MatchHandle, require_handle
from pagetier.shm._core import Session, miss


def find(session: Session | None, keys: Keys) -> Match:
    """Returns the same as Client.match(), and does not count a lookup.

    Loading the match counts no tokens. Client.find_groups() does the same for layer groups. Neither logs a client that
    is closed: an adapter closes its client itself.

    Args:
        session: The session.
        keys: The keys from the first page of the prompt on.
    """
    require_keys(keys, "find()")
    if session is None or not session.usable:
        return miss(Match, keys, len(keys))
    return session.rematch(Match, keys, keys.data, miss(Match, keys, 0))


def count_lookup(session: Session | None, lookup: Lookup) -> None:
    """Counts the lookup of a request that was not counted before, once its outcome is known."""
    if session is not None:
        session.count_lookup(*msgspec.structs.astuple(lookup))


def count_match(session: Session | None, match: GroupMatch) -> None:
    """Counts a match as the lookup of its request, as Client.match() does; tokens on disk only at its release."""
    count_lookup(session, msgspec.structs.replace(match.lookup, missed_tokens=match.asked - match.available_tokens))
    match.matches[0].count_later(match.available_tokens - match.tokens)


def sample_lookup(session: Session | None, match: GroupMatch) -> None:
    """Lets the daemon learn what a request looked up, for `pagetier advise`: once, with its first match.

    It is for a match of Client.find_groups(); Client.match() and match_groups() do it themselves. Only groups count
    whose pages are useless without those before them.
    """
    if session is not None:
        sample(session, match)


def adopt(session: Session | None, handle: MatchHandle) -> Match:
    """Returns a match of another process of the same engine, pinned by this process too. Never waits.

    The match ends before the first page that was evicted since the other process pinned it. It is empty if this process
    is not attached to the same segments. Its `keys` are None, so load() copies pinned pages only.

    Args:
        session: The session.
        handle: The handle that Match.to_handle(), or pickling the match, gave. The other process keeps its match until
            this call has returned.
    """
    require_handle(handle)
    if session is None or session.segments_id != handle.segments_id:
        return miss(Match, handle.page_tokens, len(handle))
    return session.repin(Match, handle.page_tokens, handle.entries, handle.serials)
