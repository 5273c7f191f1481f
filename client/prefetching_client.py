"""Bringing pages into memory that are on disk or in the fleet."""

from __future__ import annotations

from pagetier.client.attachment import Attachment
from pagetier.client.destinations import UnpinnedPrefix
from pagetier.client.fleet_lookup import Location, request_location, space_of
from pagetier.client.group_fleet_lookup import GroupLocation, LocatedHit, request_group_location
from pagetier.client.group_match import GroupMatch
from pagetier.client.keys import Keys
from pagetier.client.matching_client import MatchingClient
from pagetier.client.misuse import require_keys
from pagetier.client.pending_request import PendingRequest
from pagetier.client.pending_reservation import RESPONSE_S, FleetPages, Prefetch, prefetch_request
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.clock import Deadline


class PrefetchingClient(MatchingClient):
    """A client that brings pages into memory: the part of Client that asks the daemon for pages of other tiers."""

    def locate(self, keys: Keys, timeout: float | None = None) -> Location:
        """Asks which pages the fleet has, and returns without waiting for the response.

        For pages that a match has found neither in memory nor on disk; prefetch() then reads them. Nothing is asked,
        and the result is ready, without a fleet and while it does not answer. The call may wait for the daemon's
        socket to take the request, at most the client's timeout.

        Args:
            keys: The keys of the pages, in order.
            timeout: Seconds for sending.

        Returns:
            The pending location. The daemon answers within `remote.ask_timeout`.
        """
        require_keys(keys, "locate()")
        return request_location(self._own_attachment(), keys, self._seconds(timeout))

    def prefetch(self, keys: Keys, timeout: float | None = None, located: Location | None = None) -> Prefetch:
        """Requests that the daemon reads pages from disk or the fleet into memory, and returns without waiting.

        For an engine's scheduler, if `match.available_pages` exceeds `len(match)`; once the prefetch is ready,
        rematch() pins the pages. Without a daemon it is ready at once. The call may wait for the daemon's socket to
        take the request, at most the client's timeout.

        Args:
            keys: All keys from the first page of the prompt on, which keeps the recency of the pages in order. A page
                that is in memory already costs one lookup.
            timeout: Seconds that the disk and the fleet may take.
            located: A location of the last of these keys that is ready: those that no tier of this host has are read
                from the fleet.

        Returns:
            The pending prefetch. Dropping it does not cancel the prefetch.

        Raises:
            ValueError: The location is not of the last of these keys.
        """
        require_keys(keys, "prefetch()")
        if located is None:
            return self._prefetch(keys.data, timeout)
        before = len(keys) - len(located.keys)
        if before < 0 or keys[before:].data != located.keys.data:
            raise ValueError("the location is not of the last of these keys")
        sizes = located.page_sizes
        if not len(sizes):
            return self._prefetch(keys.data, timeout)
        return self._prefetch(keys.data, timeout, _of_one_space(keys, before, located))

    def locate_groups(self, match: GroupMatch, timeout: float | None = None) -> GroupLocation:
        """Asks in one message which pages of all groups after a match the fleet has, and returns without waiting.

        The daemon answers within `remote.ask_timeout`. Then `longest_hit()` of the result returns what memory, disk and
        fleet allow together, and prefetch_groups() reads exactly the pages that it needs. At most 4,096 pages are asked
        for, those nearest to the match. Nothing is asked, and the result is ready, without a fleet, while it does not
        answer, and if the match lacks no page. Waits as prefetch() does.

        Args:
            match: A match of this client. It may be released once the call has returned.
            timeout: Seconds for sending.

        Returns:
            The pending location.
        """
        return request_group_location(self._own_attachment(), match, self._seconds(timeout))

    def prefetch_groups(
        self, match: GroupMatch, timeout: float | None = None, located: LocatedHit | None = None
    ) -> Prefetch:
        """Requests in one message all pages that a hit needs and that are not pinned.

        Waits as prefetch() does. Once all pages are in memory, match again with find_groups(), which also updates the
        recency of the pages of all groups. After the first page that cannot be read the others are not read.

        Args:
            match: A match of this client.
            timeout: Seconds that the disk and the fleet may take.
            located: The hit, with pages of the fleet; None for the hit that memory and disk allow. It is from a
                location of this match.

        Returns:
            The pending prefetch.
        """
        if located is None:
            return self._prefetch(match.missing(), timeout)
        return self._prefetch(located.keys, timeout, located.fleet)

    def _prefetch_rest(self, unpinned: UnpinnedPrefix, deadline: Deadline) -> PendingRequest[int]:
        """Returns a request to read the pages after the pinned ones on disk or in the fleet, not sent yet.

        Waits for an attachment in progress and for the answer of the fleet, at most until the deadline.
        """
        attachment = self._own_attachment()
        attachment.wait_linked(deadline.left)
        fleet = self._locate_rest(attachment, unpinned, deadline)
        left = deadline.left
        # The disk gets a little less time than the caller has, so that a response that does not come in time is the
        # daemon's fault and not the disk's.
        disk_timeout = left - min(RESPONSE_S, left / 8)
        pages = unpinned.on_disk if fleet is None else len(unpinned.rest)
        return prefetch_request(attachment, unpinned.rest[:pages].data, disk_timeout, fleet)

    def _locate_rest(self, attachment: Attachment, unpinned: UnpinnedPrefix, deadline: Deadline) -> FleetPages | None:
        """Returns which pages after those on disk the fleet has, None if it has none or does not answer in time."""
        rest = unpinned.rest[unpinned.on_disk :]
        left = deadline.left
        location = request_location(attachment, rest, left) if rest and left else None
        if location is None or not location.wait(deadline.left):
            return None
        return _of_one_space(unpinned.rest, unpinned.on_disk, location)

    def _prefetch(self, keys: bytes, timeout: float | None, fleet: FleetPages | None = None) -> Prefetch:
        attachment = self._own_attachment()
        pending = prefetch_request(attachment, keys, self._seconds(timeout), fleet)
        pending.send_and_leave(self._seconds(None))
        return Prefetch(pending, len(keys) // KEY_BYTES)


def _of_one_space(keys: Keys, before: int, located: Location) -> FleetPages:
    """Returns what the fleet has of keys of one namespace, of which the first `before` were not asked for."""
    return FleetPages(bytes(8 * before) + located.page_sizes.tobytes(), bytes(4 * len(keys)), (space_of(keys),))
