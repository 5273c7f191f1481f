"""The client: the object with which an engine registers its KV cache and reaches the daemon."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack, overload

from pagetier.client.arguments import seconds_of
from pagetier.client.page_client import PageClient
from pagetier.client.reconnect import LinkEvent, log_event
from pagetier.client.registered_cache import RegisteredCache
from pagetier.client.registered_group import RegisteredGroup
from pagetier.client.registered_groups import RegisteredGroups
from pagetier.client.registration import (
    CacheGroup,
    EngineOptions,
    attention_group,
    namespace_of,
    paged_cache_of,
    shard_of,
)
from pagetier.kernels.layout.cache_layout import CacheLayout
from pagetier.kernels.layout.named_layouts import KvCaches
from pagetier.shm.clock import Deadline
from pagetier.shm.socket_path import default_socket

_R = TypeVar("_R", RegisteredCache, RegisteredGroups)


class Client(PageClient):
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
        timeout: Seconds that a call may wait for the daemon if the call itself has no `timeout`.
        name: The name that administrators see; by default the name of the program.
        threads: The number of threads that a large copy may use, the calling thread included; 0 for up to 4, depending
            on the CPUs of this process.
        on_link: Receives each change of the connection, in a background thread; by default one line is logged. It must
            not raise.

    Raises:
        TypeError: The timeout is not a number.
        ValueError: The timeout is negative or NaN.
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
        super().__init__(socket, timeout=timeout, name=name, threads=threads, on_link=on_link)
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
        if kv_caches is not None:
            group = attention_group(kv_caches, layout, page_tokens, num_kv_heads)
            return self._remember(RegisteredCache(self, self._group(group, model, options)))
        caches = [
            self._group(group, model, options, f", {number} of {len(groups)}") for number, group in enumerate(groups, 1)
        ]
        return self._remember(RegisteredGroups(self, caches, [group.kind for group in groups]))

    @property
    def attached(self) -> bool:
        """Whether the client is attached to a daemon now.

        Without a daemon, pages that are already mapped are still matched and loaded, but stores are rejected.
        """
        return self._own_attachment().attached.is_set()

    def wait_attached(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds until the client is attached, and returns whether it is."""
        return self._own_attachment().attached.wait(seconds_of("timeout", timeout))

    def close(self) -> None:
        """Ends the copies of registered caches, then releases all pins, the mapped memory and the slot.

        May be called again. Afterwards every match is a miss, matches made before can no longer be loaded, and stores
        are rejected. The call waits for running copies: for those of registered caches and then for the others, each
        time at most the client's timeout. If they take longer, the memory is released when they end. If no daemon
        answers, a thread of this process returns the slot as soon as one does.

        A client that is garbage collected is closed too, without waiting. Closing a client in a forked child does not
        affect the parent.
        """
        try:
            deadline = Deadline(self.timeout)
            for registered in list(self._registered):
                registered.close(deadline.left)
            self._closed = True
            if not self._attachment.foreign:
                self._attachment.stop(self._seconds(None))
        except BaseException:  # an exception of a signal handler; the rest happens in the background
            self._attachment.drop()
            raise

    def _group(self, group: CacheGroup, model: str, options: EngineOptions, place: str = "") -> RegisteredGroup:
        paged = paged_cache_of(group, shard_of(options))
        return RegisteredGroup(self, paged, namespace_of(paged, group, model, options, place))

    def _remember(self, registered: _R) -> _R:
        self._registered.add(registered)
        return registered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        path = self._socket or default_socket()
        session = self._attachment.session
        state = "closed" if self._closed else "attached" if self.attached else "without a daemon"
        memory = f", slot {session.slot} of {session.arena_bytes / 2**30:.1f} GiB" if session is not None else ""
        return f"<{type(self).__name__} {state}, {path}{memory}>"
