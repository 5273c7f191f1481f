"""Loading, prefetching and storing pages by their keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagetier.client.destinations import destination_of, unpinned_prefix_of
from pagetier.client.hints import NO_HINT, Hint, send_hint
from pagetier.client.keys import Keys, Namespace
from pagetier.client.match import Match
from pagetier.client.misuse import require_keys, require_match, require_namespace, why_nothing_loaded
from pagetier.client.paged_blocks import WHOLE, Blocks, Part, require_named
from pagetier.client.pending_reservation import PendingReservation, flush_request, packed_sizes, reservation_request
from pagetier.client.prefetching_client import PrefetchingClient
from pagetier.client.reservation import Reservation
from pagetier.client.store_result import StoreResult
from pagetier.kernels.host.buffers import Access, HostBuffers, pages_of
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point


class PageClient(PrefetchingClient):
    """A client that loads, prefetches and stores pages by their keys: the part of Client that needs no registration.

    `timeout` is a number of seconds everywhere; None stands for the client's own timeout.
    """

    def load(self, match: Match, out: HostBuffers | Blocks, start_page: int = 0, timeout: float | None = None) -> int:
        """Copies pages of a match to host memory.

        Pages of the match that are on disk are read into memory while pinned pages are copied, as far as `out` has room
        for them; they are pinned for the copy only. So are pages after them that the fleet has, if there is one and it
        answers. The timeout does not limit the time for copying.

        Args:
            match: A match that is not released, of a client of this process that is not closed.
            out: One writable buffer in C order for all pages, or a sequence of buffers, one for each page: numpy
                arrays, torch CPU tensors, bytearrays and the like. Or blocks of an engine's cache.
            start_page: The first page to copy, counted from the first page of the match.
            timeout: Seconds to wait for pages on disk and in the fleet, from the request on. With 0 the call does not
                wait, but copies pages that reached memory while others were copied; the fleet is not asked.

        Returns:
            The number of pages that were copied, counted from `start_page`. A page is a miss, with all pages after it,
            if it was not read in time, is gone, or has another size than its buffer.

        Raises:
            TypeError: `match` is not a Match, or `out` is not writable host memory.
            ValueError: `start_page` is negative, a buffer is empty, or the blocks cannot be loaded or have another
                layout than the pages. Nothing is copied.
        """
        require_match(match, start_page)
        destination = destination_of(match, out, start_page, self.threads)
        unpinned = unpinned_prefix_of(match, destination)
        seconds = self._seconds(timeout)
        if unpinned is None or (not unpinned.on_disk and not seconds):
            return destination.copy(match, 0) or self._nothing_loaded(match, out, start_page)
        deadline = Deadline(seconds)
        prefetch = self._prefetch_rest(unpinned, deadline)
        try:
            prefetch.send(deadline.left)  # the disk works while pages in memory are copied
            done = destination.copy(match, 0)
            if done >= len(match) - start_page:
                point("client.waiting")
                prefetch.wait(deadline.left)
            prefetch.leave()
        except BaseException:
            prefetch.leave()
            raise
        if done < len(match) - start_page:
            return done
        point("client.fetched")
        with self._rematch(unpinned.session, unpinned.all, match) as longer:
            done += destination.copy(longer, done)
        match.count_loaded(start_page + done)
        return done or self._nothing_loaded(match, out, start_page)

    def _nothing_loaded(self, match: Match, out: HostBuffers | Blocks, start_page: int) -> int:
        """Returns 0, and logs once if that is the caller's mistake."""
        if not isinstance(out, Blocks) and (why := why_nothing_loaded(match, out, start_page)):
            self.misuse.report(why)
        return 0

    def store(
        self,
        keys: Keys,
        pages: HostBuffers | Blocks,
        part: Part = WHOLE,
        timeout: float | None = None,
        hint: Hint = NO_HINT,
    ) -> StoreResult:
        """Stores a page for each key, or this writer's part of each page.

        Pages reported as stored are found by the next match in any process, once all of their parts are stored, until
        they are evicted. The memory may be reused when the call returns. The timeout does not limit the time for
        copying. Raises TypeError if `pages` is not host memory.

        Args:
            keys: All keys from the first page of the prompt on, which keeps the recency of the pages in order. A page
                that is present already costs one lookup and is not read.
            pages: Host memory for each key, in the same forms as for load(). With parts, each buffer is `part.count`
                times smaller than its page. Of blocks, the rank's own part is stored, except for skipped pages.
            part: The part of every page that this writer stores. Blocks determine it on their own.
            timeout: Seconds to wait for the daemon; with 0 or less all pages are rejected.
            hint: What is known of the prompt's session, see hint().

        Returns:
            What became of each page.

        Raises:
            ValueError: The number of pages differs from the number of keys, a buffer is empty, blocks are given with a
                part or belong to pages of another layout, or a page that is not skipped lacks some of its tokens.
        """
        require_keys(keys, "store()")
        if isinstance(pages, Blocks):
            if part != WHOLE:
                raise ValueError(f"{part} was given for blocks, which determine the part on their own")
            return self._store_blocks(keys, pages, timeout, hint)
        memory = pages_of(pages, len(keys), Access.READ)
        with self.reserve(keys, memory.sizes * part.count, part, timeout, hint) as reservation:
            point("client.reserved")
            reservation.write_all(memory, self.threads)
            point("client.written")
            return reservation.publish()

    def reserve(
        self,
        keys: Keys,
        sizes: int | Sequence[int] | npt.NDArray[np.uint64],
        part: Part = WHOLE,
        timeout: float | None = None,
        hint: Hint = NO_HINT,
    ) -> Reservation:
        """Returns memory for pages: the first half of store(), for an engine that writes a page in pieces.

        Raises ValueError if the number of sizes differs from the number of keys, or a size is below 0.

        Args:
            keys: All keys from the first page of the prompt on.
            sizes: Bytes of each page with all of its parts, or one number for all pages.
            part: The part of every page that this writer stores.
            timeout: Seconds to wait for the daemon; with 0 or less all pages are rejected.
            hint: What is known of the prompt's session, see hint().
        """
        require_keys(keys, "reserve()")
        seconds = self._seconds(timeout)
        deadline = Deadline(seconds)
        if self._closed:
            return Reservation.rejected(len(keys), "the client is closed", part)
        if not seconds:
            packed_sizes(sizes, len(keys))
            return Reservation.rejected(len(keys), "the timeout left no time to ask", part)
        attachment = self._own_attachment()
        if attachment.linked is None:
            attachment.wait_linked(seconds)
        return reservation_request(attachment, keys, sizes, part, hint).send_and_collect(deadline)

    def reserve_async(
        self,
        keys: Keys,
        sizes: int | Sequence[int] | npt.NDArray[np.uint64],
        part: Part = WHOLE,
        timeout: float | None = None,
        hint: Hint = NO_HINT,
    ) -> PendingReservation:
        """Returns a request for memory for pages, sent without waiting for the response: for a forward pass.

        The arguments and errors are those of reserve(), except for `timeout`, which limits sending only. With 0 the
        call never waits: if the socket does not take the request, the result is `unsent`. A request for thousands of
        keys may then be sent in part, which ends the attachment; the client attaches again on its own.
        """
        require_keys(keys, "reserve_async()")
        pending = reservation_request(self._own_attachment(), keys, sizes, part, hint)
        pending.send_and_leave(self._seconds(timeout))
        return PendingReservation(pending, len(keys), part)

    def hint(self, keys: Keys, hint: Hint, timeout: float | None = None) -> bool:
        """Says what is known of pages: that their session is over or when it returns, or that they are to be kept.

        Sends a message and waits for no response, but perhaps for the daemon's socket to take it, at most `timeout`.
        Hints move pages in the order of eviction, and never reject a store; keys of pages that do not exist are counted
        and ignored. A store without a hint, or NO_HINT, ends the hint of the pages that it uses. Kept pages stay kept
        until their time ends, or until Hint.unkeep(). With `evict.policy = "lru"` hints have no effect.

        Args:
            keys: The pages; all keys from the first page of the prompt on, since the last page is useless without them.
            hint: What is known.
            timeout: Seconds for sending; None for the client's timeout.

        Returns:
            Whether the hint was sent. False without a daemon, and for a daemon that does not know hints.
        """
        return send_hint(self._own_attachment(), keys, hint, self._seconds(timeout))

    def flush(self, namespace: Namespace, timeout: float | None = None) -> bool:
        """Drops the pages of a namespace from memory and disk, regardless of which process stored them.

        Pages that are pinned or being written stay.

        Args:
            namespace: The namespace; others, also with the same model, are not affected.
            timeout: Seconds to wait for an attachment in progress, and then for the response, which comes when the
                pages have left the disk too. The daemon drops the pages even if the response comes later.

        Returns:
            Whether the daemon has confirmed in time that no page of the namespace is left. False without a daemon.
        """
        require_namespace(namespace)
        seconds = self._seconds(timeout)
        deadline = Deadline(seconds)
        attachment = self._own_attachment()
        attachment.wait_linked(seconds)
        pending = flush_request(attachment, namespace)
        try:
            pending.send(deadline.left)
            answer = pending.wait(deadline.left)
            pending.leave()
        except BaseException:  # an exception of a signal handler
            pending.leave()
            raise
        return answer is not None and not answer.kept

    def _store_blocks(self, keys: Keys, pages: Blocks, timeout: float | None, hint: Hint) -> StoreResult:
        require_named(keys.namespace, pages.cache.page)
        pages.whole(len(keys))
        with self.reserve(keys, pages.page_bytes, pages.part, timeout, hint) as reservation:
            reservation.gather(pages, self.threads)
            return reservation.publish()
