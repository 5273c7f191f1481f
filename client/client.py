"""The client: what an engine holds to match, load and store pages."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.attachment import Attachment, shown_name
from pagetier.client.flush import PendingFlush
from pagetier.client.futures import ANSWER_S, PendingReservation, Prefetch, packed_sizes, space_of
from pagetier.client.group_match import GroupKeys, GroupMatch, Lookup, matched, missed
from pagetier.client.keys import KEY_BYTES, Keys, Namespace
from pagetier.client.load import destination_of, pages_behind
from pagetier.client.match import Match, MatchHandle
from pagetier.client.paged_blocks import WHOLE, Blocks, Part, require_named
from pagetier.client.reservation import Answered, Reservation, StoreResult
from pagetier.client.rpc import patience
from pagetier.kernels.host.buffers import Access, HostBuffers, pages_of
from pagetier.kernels.pinning.pinned_arenas import PinnedArenas
from pagetier.shm._core import Session, miss
from pagetier.shm.failpoints import point
from pagetier.shm.protocol import Fetch, Flush, Reserve
from pagetier.shm.socket_path import default_socket

_COPY_THREADS = 4


class Client:
    """Attached to the daemon of this host, or looking for it.

    Never raises for an absent, stopped or restarted daemon: matches miss, stores are refused, one line goes to the
    log, and the client attaches again by itself. Threads may share a client. A forked child misses, and attaches anew
    with its first call.

    It attaches in the background. store(), reserve() and load() wait within their timeout for an attachment that is
    under way: where a daemon's socket answers, and not where there is no daemon or it refuses. match(), prefetch() and
    reserve_async() never wait for it.

    Args:
        socket: the control socket's path; None: where default_socket() says, asked anew at each attempt.
        timeout: seconds that a call may wait for the daemon, where the call itself says nothing else.
        name: shown to administrators; by default the name of the program.
        threads: on which a large copy may run, the calling one among them; 0: as it fits.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 1.0,
        name: str = "",
        threads: int = 0,
    ) -> None:
        self.timeout = timeout
        # A Path is kept as it is: a DefaultSocket is one that has to be checked.
        self._socket = socket if socket is None or isinstance(socket, Path) else Path(socket)
        self._name = shown_name(name)
        self.threads = threads or min(_COPY_THREADS, len(os.sched_getaffinity(0)))
        self._closed = False
        self._members: dict[int, Attachment] = {}
        self._member = self._join()

    @property
    def attached(self) -> bool:
        """Whether the daemon is there now. Without it matching and loading go on, storing does not."""
        return self._mine().attached.is_set()

    @property
    def session(self) -> Session | None:
        """The mapped segments, for who copies by himself; None where there are none, and another one for others."""
        return self._mine().session

    @property
    def arenas(self) -> PinnedArenas:
        """What the copiers of this process have pinned of the mapped segments, together."""
        return self._mine().arenas

    def wait_attached(self, timeout: float) -> bool:
        """Waits until the daemon is there, at most `timeout` seconds."""
        return self._mine().attached.wait(timeout)

    def match(self, keys: Keys) -> Match:
        """Returns the longest cached prefix of the keys, pinned until it is released. Sends and awaits no message.

        Each call counts as one lookup; a request that matches again calls rematch(). Pinned pages count as tokens from
        memory, pages behind them in the tier where they were found once load() has copied them, all others as missed.

        A page that this client has pinned 65,535 times already, by as many unreleased matches, is a miss and ends the
        prefix.
        """
        session = self._member.session
        if session is None or not session.usable:
            self._mine()
            return miss(Match, keys, len(keys))
        return session.match(Match, keys, keys.data, keys.namespace.page_tokens)

    def rematch(self, match: Match) -> Match:
        """Matches the keys of a match again for the same request, as after a prefetch: it is no further lookup.

        Pages that came in meanwhile count in the tier where `match` found them, unless it is released already.
        """
        keys, session = match.keys, match.session
        if keys is None or session is None or not session.usable:
            return miss(Match, keys, match.asked)
        longer = self._rematch(session, keys, match)
        match.count_loaded(len(longer))
        return longer

    def match_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Returns the longest hit on which all groups of a model agree, pinned until it is released.

        Sends and awaits no message. Each call counts as one lookup, of which everything beyond the hit is missed. An
        engine that matches a request several times calls find_groups() and count_lookup().

        Args:
            groups: the keys of one prompt in each group; at most 64.
            limit: tokens beyond which no hit is wanted.

        Raises:
            ValueError: there are no groups, or too many.
        """
        match = self.find_groups(groups, limit)
        self.count_lookup(match.lookup)
        return match

    def find_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Does what match_groups() does without counting a lookup."""
        session = self._member.session
        if session is None or not session.usable:
            self._mine()
            return missed(groups)
        return matched(session, groups, limit)

    def count_lookup(self, lookup: Lookup) -> None:
        """Counts the lookup of a request that was matched with find_groups(), once its outcome is known."""
        session = self._member.session
        if session is not None:
            session.count_lookup(*msgspec.structs.astuple(lookup))

    def adopt(self, handover: MatchHandle) -> Match:
        """What another process of the same engine matched, pinned by this one, as far as it is still there."""
        session = self._mine().session
        if session is None or session.segments_id != handover.segments_id:
            return miss(Match, None, len(handover))
        return session.repin(Match, None, handover.entries, handover.serials)

    def prefetch(self, keys: Keys, timeout: float | None = None) -> Prefetch:
        """Asks the daemon to bring pages in from disk and does not wait for that: for an engine's scheduler.

        Worth it where a match reaches further than it is pinned; rematch() then pins what has come. Without a daemon
        it is done at once.

        Args:
            keys: the whole chain from the head of the prompt, so that its recency is right; what is in memory already
                costs a look-up.
            timeout: seconds that the disk may take.
        """
        return self._fetch_soon(keys.data, timeout)

    def prefetch_groups(self, match: GroupMatch, timeout: float | None = None) -> Prefetch:
        """The same for what `match.reach` needs of all groups and is not pinned, in one request.

        Once all of it is there, match again with find_groups(): that gives the pages of all groups their recency, too.
        """
        return self._fetch_soon(match.missing(), timeout)

    def load(self, match: Match, out: HostBuffers | Blocks, start_page: int = 0, timeout: float | None = None) -> int:
        """Copies pages of a match, from page `start_page` on, to host memory; returns how many.

        Pages behind the pinned ones that are on disk are brought in, if there is room for them; they are pinned for
        the copy alone. Fewer than asked for is a miss from there on, also where a buffer has another size than its
        page.

        Args:
            match: held, of a client of this process that is not closed.
            out: one writable buffer in C order for all pages, or a sequence of buffers, one a page. Buffers are
                numpy arrays, torch CPU tensors, bytearrays and the like. Or blocks of an engine's cache.
            start_page: the first page to copy, counted from the head of the match.
            timeout: seconds to wait for pages on disk, from when they are asked for; with 0 what has come in while
                others were copied is copied, too.

        Raises TypeError or ValueError for buffers and blocks that can not be written to.
        """
        to = destination_of(match, out, start_page, self.threads)
        behind = pages_behind(match, to)
        if behind is None:
            return to.copy(match, 0)
        seconds = self._patience(timeout)
        ends = time.monotonic() + seconds
        # The disk works while memory is copied. It is given a little less time than there is, so that what is not
        # heard of in time is the daemon's fault.
        self._mine().wait_attachment(seconds)
        prefetch = self._fetch(behind.rest.data, seconds - min(ANSWER_S, seconds / 8), seconds)
        try:
            done = to.copy(match, 0)
            if done < len(match) - start_page:
                return done
            point("client.waiting")
            prefetch.wait(ends - time.monotonic())
        finally:
            self._member.requests.leave(prefetch)
        point("client.fetched")
        with self._rematch(behind.session, behind.all, match) as longer:
            done += to.copy(longer, done)
        match.count_loaded(start_page + done)
        return done

    def store(
        self, keys: Keys, pages: HostBuffers | Blocks, part: Part = WHOLE, timeout: float | None = None
    ) -> StoreResult:
        """Stores a page for each key, or this writer's part of each.

        Args:
            keys: the whole chain from the head of the prompt, so that its recency is right; what is present already
                costs a look-up and is not read.
            pages: host memory for each key, in the same forms as for load(). With parts each is `part.count` times
                smaller than its page. Of blocks the rank's own part is stored, but for those that are to be skipped.
            part: which share of every page this writer fills; blocks say that themselves.
            timeout: seconds to wait for the daemon; with 0 or less everything is refused.

        Raises TypeError or ValueError for what is no page for each key, and for blocks that are not whole pages.
        """
        if isinstance(pages, Blocks):
            if part != WHOLE:
                raise ValueError(f"{part}, but blocks say themselves which part of a page they are")
            return self._store_blocks(keys, pages, timeout)
        memory = pages_of(pages, len(keys), Access.READ)
        with self.reserve(keys, memory.sizes * part.count, part, timeout) as reservation:
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
    ) -> Reservation:
        """Room for pages of `sizes` bytes: the first half of store(), for who writes the pages bit by bit.

        Raises ValueError where the number of sizes is another than that of the keys, or one is below 0.
        """
        seconds = self._patience(timeout)
        ends = time.monotonic() + seconds
        if not seconds:
            packed_sizes(sizes, len(keys))
            return Reservation(None, set(), Answered.refused(len(keys), "no time was given to ask"), part)
        self._mine().wait_attachment(seconds)
        promise = self._ask(keys, sizes, part, max(0.0, ends - time.monotonic()))
        return promise.wait(ends - time.monotonic())

    def reserve_async(
        self,
        keys: Keys,
        sizes: int | Sequence[int] | npt.NDArray[np.uint64],
        part: Part = WHOLE,
        timeout: float | None = None,
    ) -> PendingReservation:
        """Asks for room and does not wait for the answer: for a forward pass. `timeout` is for the sending alone.

        With 0 nobody is waited for, and the promise may be `unsent`; thousands of keys may end the attachment then.
        """
        promise = self._ask(keys, sizes, part, self._patience(timeout))
        self._member.requests.leave(promise)
        return promise

    def _store_blocks(self, keys: Keys, pages: Blocks, timeout: float | None) -> StoreResult:
        require_named(keys.namespace, pages.cache.page)
        pages.whole(len(keys))
        with self.reserve(keys, pages.page_bytes, pages.part, timeout) as reservation:
            reservation.gather(pages, self.threads)
            return reservation.publish()

    def flush(self, namespace: Namespace, timeout: float | None = None) -> bool:
        """Drops the pages of a namespace from memory and disk, whoever stored them. For one that is of no use any more.

        Args:
            namespace: this one alone, given by its digest.
            timeout: seconds to wait for the answer, which comes when the pages have left the disk, too. The daemon
                drops them also where nobody waits for that.

        Returns whether no page of it is left in the index. Pages that are pinned or being written stay.
        """
        seconds = self._patience(timeout)
        ends = time.monotonic() + seconds
        member = self._mine()
        attachment, digest = member.attachment, namespace.digest.hex()
        pending = PendingFlush(member.requests, attachment)
        member.requests.ask(attachment, lambda number: Flush(number, digest), pending, seconds)
        answer = pending.wait(ends - time.monotonic())
        return answer is not None and not answer.kept

    def close(self) -> None:
        """Lets go of everything; matches that are still held can not be loaded any more. May be called again.

        A client that is dropped is closed, too. Waits for copies that go on, at most the client's timeout: after that
        the rest is done when they end. Where the daemon is away or stopped, a thread of this process gives the slot
        back once a daemon answers.
        """
        self._closed = True
        if not self._member.foreign:
            self._member.stop(self._patience(None))

    def _ask(
        self, keys: Keys, sizes: int | Sequence[int] | npt.NDArray[np.uint64], part: Part, seconds: float
    ) -> PendingReservation:
        member = self._mine()
        attachment = member.attachment
        packed = packed_sizes(sizes, len(keys))
        space = space_of(keys.namespace)

        def request(number: int) -> Reserve:
            return Reserve(number, space, part.index, part.count, keys.data, packed, part.division)

        promise = PendingReservation(member.requests, attachment, part, len(keys))
        member.requests.ask(attachment, request, promise, seconds)
        return promise

    def _rematch(self, session: Session, keys: Keys, match: Match) -> Match:
        return session.rematch(Match, keys, keys.data, match)

    def _fetch_soon(self, keys: bytes, timeout: float | None) -> Prefetch:
        prefetch = self._fetch(keys, self._patience(timeout), self._patience(None))
        self._member.requests.leave(prefetch)
        return prefetch

    def _fetch(self, keys: bytes, for_disk: float, for_sending: float) -> Prefetch:
        member = self._mine()
        attachment = member.attachment if keys else None

        def request(number: int) -> Fetch:
            return Fetch(number, keys, for_disk)

        prefetch = Prefetch(member.requests, attachment, len(keys) // KEY_BYTES, for_disk)
        member.requests.ask(attachment, request, prefetch, for_sending)
        return prefetch

    def _patience(self, timeout: float | None) -> float:
        return patience(self.timeout if timeout is None else timeout)

    def _join(self) -> Attachment:
        """The membership of this process; threads that come here at once get the same one."""
        socket = self._socket
        fresh = Attachment(lambda: socket or default_socket(), self._name)
        member = self._members.setdefault(os.getpid(), fresh)
        if member is fresh:
            weakref.finalize(self, member.drop).atexit = False
            member.start()
        return member

    def _mine(self) -> Attachment:
        """This process's membership: a forked child gets one of its own."""
        member = self._member
        if member.foreign and not self._closed:
            self._member = self._join()
            member.disown()
        return self._member

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = self._socket or default_socket()
        session = self._member.session
        state = "closed" if self._closed else "attached" if self.attached else "without a daemon"
        memory = f", slot {session.slot} of {session.arena_bytes / 2**30:.1f} GiB" if session is not None else ""
        return f"<Client {state}, {where}{memory}>"
