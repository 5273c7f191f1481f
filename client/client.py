"""The client: registers the KV cache of an engine, and matches, loads and stores pages."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, overload

from pagetier.client.arguments import Misuse, MisuseLog, natural_of, path_of, seconds_left, seconds_of, seconds_to_wait
from pagetier.client.attachment import Attachment
from pagetier.client.daemon_requests import Prefetch, flush, prefetch_request, require_namespace, send_hint
from pagetier.client.destinations import destination_of, first_page, unpinned_prefix_of, why_nothing_loaded
from pagetier.client.fleet_lookup import LocatedHit, Location, pages_to_read, request_location, require_group_match
from pagetier.client.group_match import GroupKeys, GroupMatch, matched, missed
from pagetier.client.hints import NO_HINT, Hint
from pagetier.client.keys import Keys, Namespace, require_keys
from pagetier.client.load_or_compute import LoadOrCompute
from pagetier.client.match import Match, reject_keys
from pagetier.client.own_attachment import OwnAttachment, display_name, started
from pagetier.client.paged_blocks import WHOLE, Blocks, Part, require_named, required_part
from pagetier.client.pending_reservation import PageSizes, packed_sizes, reservation_request
from pagetier.client.prompt_reader import PromptReader, copied_while_read
from pagetier.client.reconnect import LinkEvent, log_event
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registered_group import RegisteredGroup
from pagetier.client.registered_groups import RegisteredGroups
from pagetier.client.registration import CacheGroup, EngineOptions, attention_group
from pagetier.client.reservation import Reservation
from pagetier.client.session_lookups import count_match, sample_lookup
from pagetier.client.store_result import StoreResult
from pagetier.kernels.host.buffers import Access, HostBuffers, pages_of
from pagetier.kernels.layout.cache_layout import CacheLayout
from pagetier.kernels.layout.named_layouts import KvCaches
from pagetier.shm._core import Session, miss
from pagetier.shm.clock import Deadline
from pagetier.shm.failpoints import point
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.socket_path import default_socket

_COPY_THREADS = 4


class Client:
    """A client of the daemon on this host. Thread-safe.

    An engine with a paged KV cache registers it once with register(), and then matches, loads and stores by token IDs
    and block tables. The other methods take keys, for engines that keep pages in buffers or do more themselves.

    An absent, stopped or restarted daemon never raises an exception: matches miss, stores are rejected with a reason,
    the client writes one line to the log and attaches again on its own. A forked child attaches with its first call,
    which misses.

    The client attaches in the background. If a daemon's socket accepts connections, store(), reserve() and load() wait
    for the attachment, at most their timeout. They do not wait if there is no daemon or the daemon rejects the client.
    match() and prefetch() never wait for the attachment.

    `timeout` is a number of seconds everywhere; None stands for the client's own timeout.

    Args:
        socket: The path of the control socket. By default default_socket() decides at each attempt to attach.
        timeout: Seconds that a call may wait for the daemon if the call itself has no `timeout`. Also an attribute.
        name: The name that administrators see; by default the name of the program.
        threads: The number of threads that a large copy may use, the calling thread included; 0 for up to 4, depending
            on the CPUs of this process. Also an attribute.
        on_link: Receives each change of the connection, in a background thread; by default one line is logged. It must
            not raise.

    Raises:
        TypeError: The timeout is not a number.
        ValueError: The timeout is negative or NaN.

    Attributes:
        misuse: Logs wrong use where an exception could end an engine's forward pass.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        timeout: float = 1.0,
        name: str = "",
        threads: int = 0,
        on_link: Callable[[LinkEvent], None] = log_event,
    ) -> None:
        self.timeout = seconds_left("the timeout of a client", timeout)
        # A Path keeps its type, since the owner of a DefaultSocket is validated at each attempt to connect.
        self._socket = socket if socket is None or isinstance(socket, Path) else Path(path_of("socket", socket))
        self._name, self._on_link = display_name(name), on_link
        self.threads = natural_of("threads", threads) or min(_COPY_THREADS, len(os.sched_getaffinity(0)))
        self._closed = False
        self.misuse = MisuseLog()
        self._attachments: dict[int, OwnAttachment] = {}
        self._attachment = self._attach()
        self._registered: weakref.WeakSet[RegisteredCache | RegisteredGroups] = weakref.WeakSet()

    @overload
    def register(
        self,
        kv_caches: KvCaches | CacheLayout,
        *,
        model: str,
        page_tokens: int,
        layout: str = "",
        num_kv_heads: int | None = None,
        **options: Unpack[EngineOptions],
    ) -> RegisteredCache: ...
    @overload
    def register(
        self, *, groups: Sequence[CacheGroup], model: str, **options: Unpack[EngineOptions]
    ) -> RegisteredGroups: ...
    def register(
        self,
        kv_caches: KvCaches | CacheLayout | None = None,
        *,
        model: str,
        page_tokens: int = 0,
        layout: str = "",
        num_kv_heads: int | None = None,
        groups: Sequence[CacheGroup] = (),
        **options: Unpack[EngineOptions],
    ) -> RegisteredCache | RegisteredGroups:
        """Registers this rank's KV cache, so that it can be matched, loaded and stored by tokens and block tables.

        Everything that is passed, apart from the rank, determines which engines share pages: they have to pass the same
        values. Nothing is sent, and the daemon need not run. The tensors must stay allocated until the copies of the
        cache have ended, which close() waits for.

        Args:
            kv_caches: The tensors of this rank, in the form that `layout` takes, on the host or on a GPU; or a
                CacheLayout for any other layout. Layers that share their tensors count as one, also in LoadHandle.
            model: The model.
            page_tokens: The number of tokens in a page, a multiple of the engine's block size. Pages are found and
                stored as a whole: 256 is good for most engines.
            layout: How the tensors are laid out: a name of the table in docs/api.md.
            num_kv_heads: KV heads of the whole model; needed with several tensor-parallel ranks, except for "mla".
            groups: The cache of each layer group of a hybrid model, instead of the arguments above other than `model`.
                Engines that share pages pass them in the same order.
            **options: tp_rank, tp_size, pp_rank, pp_layers, dtype, revision, rope, quantisation, lora and salt; see
                EngineOptions.

        Returns:
            The registered cache or, for `groups`, the registered groups.

        Raises:
            TypeError: An option is unknown, or not exactly one of kv_caches and groups is given.
            ValueError: page_tokens is below 1, or the model is empty.
            LayoutError: The tensors, the heads, the ranks and the pages do not fit each other. The message says what to
                change.
            DeviceError: The tensors are on a GPU that cannot be used.
        """
        if unknown := sorted(set(options) - set(EngineOptions.__annotations__)):
            raise TypeError(f"register() has no argument {', '.join(unknown)}")
        if (kv_caches is None) == (not groups):
            raise TypeError("pass either kv_caches or groups")
        registered: RegisteredCache | RegisteredGroups
        if kv_caches is not None:
            only = attention_group(kv_caches, layout, page_tokens, num_kv_heads)
            registered = RegisteredCache(self, RegisteredGroup.of(self, only, model, options))
        else:
            caches = [
                RegisteredGroup.of(self, group, model, options, f", {number} of {len(groups)}")
                for number, group in enumerate(groups, 1)
            ]
            registered = RegisteredGroups(self, caches, [group.kind for group in groups])
        self._registered.add(registered)
        return registered

    @property
    def session(self) -> Session | None:
        """The mapped segments, for code that copies pages on its own.

        None until the client has attached for the first time, after close(), and after the daemon has released its
        memory. The object changes when a daemon comes with other segments.
        """
        return self._own_attachment().session

    @property
    def attachment(self) -> Attachment:
        """The attachment of this process, for the functions of `pagetier.client.adapters`. It changes after a fork."""
        return self._own_attachment()

    @property
    def attached(self) -> bool:
        """Whether the client is attached to a daemon now. If not, mapped pages are still matched and loaded."""
        return self._own_attachment().attached.is_set()

    def wait_attached(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until the client is attached, and returns whether it is."""
        return self._own_attachment().attached.wait(seconds_of("timeout", timeout))

    def match(self, keys: Keys) -> Match:
        """Returns the longest cached prefix of the keys, pinned until it is released.

        The call sends no message and waits for no other process. It counts as one lookup; a request that matches again
        calls Match.again(). Pinned pages count as tokens from memory, pages after them in the tier where they were
        found once load() has copied them, and all others as missed.

        The prefix ends early where the pins of this process reach the quota `arena.process_share`. Without a daemon, a
        process that was attached still finds the pages in the segments that it has mapped; before its first attachment
        every key is a miss.

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

    def match_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Returns the longest hit on which all layer groups of a model agree, pinned until it is released.

        The call sends no message and waits for nothing. It counts as one lookup: tokens after the hit count as missed,
        those on disk at the release. An engine that matches a request several times uses find_groups(), and
        count_lookup() of `pagetier.client.adapters`, instead. Raises ValueError without groups, or for more than 64.

        Args:
            groups: The keys of one prompt in each group; at most 64.
            limit: The number of tokens that the hit may have at most; None for no limit.
        """
        match, session = self.find_groups(groups, limit), self._attachment.session
        if session is None and self._closed:
            self.misuse.report(Misuse.CLOSED)
        count_match(session, match)
        sample_lookup(session, match)
        return match

    def find_groups(self, groups: Sequence[GroupKeys], limit: int | None = None) -> GroupMatch:
        """Returns the same as match_groups(), with the same arguments and errors, and does not count a lookup.

        A closed client is not logged: the adapter that calls this closes the client itself.
        """
        session = self._attachment.session
        if session is None or not session.usable:
            self._own_attachment()
            return missed(groups)
        return matched(session, groups, limit)

    def locate(self, match: GroupMatch, timeout: float | None = None) -> Location:
        """Asks in one message which pages of all groups after a match the fleet has, and returns without waiting.

        The daemon answers within `remote.ask_timeout`. Then `longest_hit()` of the result returns what memory, disk and
        fleet allow together, and prefetch() reads exactly the pages that it needs. At most 4,096 pages are asked for,
        those nearest to the match. Nothing is asked, and the result is ready, without a fleet, while it does not
        answer, and if the match lacks no page. The call may wait for the daemon's socket to take the request. Raises
        TypeError for another argument than a match of groups.

        Args:
            match: A match of this client. It may be released once the call has returned.
            timeout: Seconds for sending.

        Returns:
            The pending location.
        """
        require_group_match(match, "locate()")
        return request_location(self._own_attachment(), match, self._seconds(timeout))

    def prefetch(self, pages: Keys | GroupMatch | LocatedHit, timeout: float | None = None) -> Prefetch:
        """Requests in one message that the daemon reads pages from disk or the fleet into memory, and does not wait.

        For an engine's scheduler, if memory lacks pages that disk or fleet have. Once the prefetch is ready,
        Match.again() or find_groups() pins the pages, which also updates their recency. After the first page that
        cannot be read the others are not read. Without a daemon the prefetch is ready at once. The call may wait for
        the daemon's socket to take the request, at most the client's timeout.

        Args:
            pages: All keys from the first page of the prompt on, which keeps the recency of the pages in order; a page
                that is in memory already costs one lookup. Or a match: what it has not pinned of the hit that memory
                and disk allow. Or a hit with pages of the fleet, which locate() has found.
            timeout: Seconds that the disk and the fleet may take.

        Returns:
            The pending prefetch. Dropping it does not cancel the prefetch.
        """
        keys, fleet = pages_to_read(pages)
        attachment = self._own_attachment()
        pending = prefetch_request(attachment, keys, self._seconds(timeout), fleet)
        pending.send_and_leave(self._seconds(None))
        return Prefetch(pending, PAGE_KEYS.count(keys))

    def load(
        self,
        match: Match,
        out: HostBuffers | Blocks,
        start_page: int = 0,
        timeout: float | None = None,
        rule: LoadOrCompute | None = None,
    ) -> int:
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
            rule: Leaves out what the engine computes faster, by the times that it has reported; by default everything
                is loaded.

        Returns:
            The number of pages that were copied, counted from `start_page`. A page is a miss, with all pages after it,
            if it was not read in time, is gone, or has another size than its buffer.

        Raises:
            TypeError: `match` is not a Match, or `out` is not writable host memory.
            ValueError: `start_page` is negative, a buffer is empty, or the blocks cannot be loaded or have another
                layout than the pages. Nothing is copied.
        """
        start_page = first_page(match, start_page)
        destination = destination_of(match, out, start_page, self.threads)
        unpinned = unpinned_prefix_of(match, destination)
        deadline, read = Deadline(self._seconds(timeout)), None
        if unpinned is not None:
            reader, present, count = PromptReader(self, rule), start_page * match.page_tokens, match.count_slower
            read = reader.plan(unpinned, present, deadline, count_slower=count)
        if unpinned is None or read is None:
            copied = destination.copy(match, 0)
        else:
            copied = copied_while_read(match, destination, read, unpinned.groups[0].keys)
        if not copied and not isinstance(out, Blocks) and (mistake := why_nothing_loaded(match, out, start_page)):
            self.misuse.report(mistake)
        return copied

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
            require_named(keys.namespace, pages.cache.page)
            pages.whole(len(keys))
            with self.reserve(keys, pages.page_bytes, pages.part, timeout, hint) as reservation:
                reservation.gather(pages, self.threads)
                return reservation.publish()
        memory = pages_of(pages, len(keys), Access.READ)
        # Reserve, copy, publish, report: see Reservation. The with block abandons what an exception leaves unpublished.
        with self.reserve(keys, memory.sizes * required_part(part).count, part, timeout, hint) as reservation:
            point("client.reserved")
            reservation.write_all(memory, self.threads)
            point("client.written")
            return reservation.publish()

    def reserve(
        self, keys: Keys, sizes: PageSizes, part: Part = WHOLE, timeout: float | None = None, hint: Hint = NO_HINT
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
        deadline = Deadline(seconds := self._seconds(timeout))
        if self._closed:
            return Reservation.rejected(len(keys), "the client is closed", part)
        if not seconds:
            packed_sizes(sizes, len(keys))
            return Reservation.rejected(len(keys), "the timeout left no time to ask", part)
        attachment = self._own_attachment()
        if attachment.linked is None:
            attachment.wait_linked(seconds)
        return reservation_request(attachment, keys, sizes, part, hint).send_and_collect(deadline)

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
        return flush(self._own_attachment(), namespace, Deadline(self._seconds(timeout)))

    def close(self) -> None:
        """Ends the copies of registered caches, then releases all pins, the mapped memory and the slot.

        May be called again. Afterwards stores are rejected. Once the memory is released, every match is a miss, and
        matches made before cannot be loaded. The call waits for it and for running copies: for those of registered
        caches, then for all else, each time at most the client's timeout. The rest happens in the background. If no
        daemon answers, a thread of this process returns the slot as soon as one does.

        A client that is garbage collected is closed too, without waiting. Closing a client in a forked child does not
        affect the parent.
        """
        try:
            deadline = Deadline(self.timeout)
            for registered in list(self._registered):
                registered.close(deadline.left)
            self._closed = True
            if self._attachment.pid == os.getpid():
                self._attachment.stop(self._seconds(None))
        except BaseException:  # an exception of a signal handler; the rest happens in the background
            self._attachment.drop()
            raise

    def _miss(self, keys: Keys) -> Match:
        if self._closed:
            self.misuse.report(Misuse.CLOSED)
        require_keys(keys, "match()")
        return miss(Match, keys, len(keys))

    def _seconds(self, timeout: float | None) -> float:
        return seconds_to_wait(self, timeout)

    def _attach(self) -> OwnAttachment:
        socket = self._socket
        fresh = OwnAttachment(lambda: socket or default_socket(), self._name, self._on_link)
        return started(self, self._attachments, fresh)

    def _own_attachment(self) -> OwnAttachment:
        """Returns the attachment of this process; the first call in a forked child makes one for the child."""
        attachment = self._attachment
        if attachment.pid != os.getpid() and not self._closed:
            self._attachment = self._attach()
            attachment.disown()
        return self._attachment

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        path = self._socket or default_socket()
        session = self._attachment.session
        state = "closed" if self._closed else "attached" if self.attached else "not attached"
        memory = f", slot {session.slot} of {session.arena_bytes / 2**30:.1f} GiB" if session is not None else ""
        return f"<{type(self).__name__} {state}, {path}{memory}>"
