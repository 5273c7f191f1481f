"""The work of `pagetier doctor --write`: stores, matches, loads and drops a page of its own, as an engine would."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

import msgspec

from pagetier.client.client import Client
from pagetier.client.keys import Keys, Namespace
from pagetier.client.reconnect import LinkEvent, LinkState
from pagetier.client.session_lookups import find
from pagetier.shm import clock
from pagetier.shm.clock import Deadline
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Flushed, Forget, Observe
from pagetier.shm.timed_get import get_in_time
from pagetier.shm.units import format_size

_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.02
_PAGE_BYTES: Final = 1 << 20
_PAGE_TOKENS: Final = 16
_TO_LIST: Final = "list the user there and reload the daemon, or run this command as the user of an engine"


class StepError(Exception):
    """A step failed; the message says why."""


class StepResult(msgspec.Struct, frozen=True):
    """A step with what it found and the time that it took, or why it failed."""

    step: str
    text: str
    failed: bool = False


def run_steps(socket: Path) -> Iterator[StepResult]:
    """Stores, matches, loads and drops a page of its own.

    It attaches as an engine does, so it also checks the rights of this user. Other pages stay, but a full arena evicts
    its coldest pages for it. What it stores, matches and loads is not counted, and no namespace stays.

    Yields:
        The result of each step, up to the first that fails.
    """
    links: SimpleQueue[LinkEvent] = SimpleQueue()
    with Client(socket, timeout=_TIMEOUT_S, name="pagetier doctor", on_link=links.put) as client:
        check = SelfTest(client, socket, links)
        for step in (check.attach, check.store, check.match, check.load, check.drop):
            began = time.perf_counter()
            try:
                found = step()
            except StepError as error:
                yield StepResult(step.__name__, str(error), failed=True)
                return
            yield StepResult(step.__name__, f"{found} in {(time.perf_counter() - began) * 1e3:.2f} ms")


def _remedy(detail: str) -> str:
    """Returns what to do about a refused attachment; the client says it for a socket that cannot be opened."""
    return f"; {_TO_LIST}" if "access." in detail and "Permission denied" not in detail else ""


class SelfTest:
    """The steps, in their order. Each returns what it found, and raises StepError if it failed."""

    def __init__(self, client: Client, socket: Path, links: SimpleQueue[LinkEvent]) -> None:
        self._client = client
        self._links = links
        self._socket = socket
        self._page = os.urandom(_PAGE_BYTES)
        # One namespace for all runs, so that the table of namespaces does not grow; random tokens tell them apart.
        namespace = Namespace(model="pagetier-selftest", dtype="bytes", page_tokens=_PAGE_TOKENS)
        tokens = [secrets.randbits(32) for _ in range(_PAGE_TOKENS)]
        self._keys = Keys(namespace, namespace.keys(tokens).data, ())  # no prompt: it is not left out

    def attach(self) -> str:
        """Attaches to the daemon."""
        try:
            link = get_in_time(self._links, _TIMEOUT_S)
        except Empty:
            raise StepError(f"the daemon on {self._socket} does not answer") from None
        if link.state is not LinkState.ATTACHED:
            raise StepError(f"{link.detail}{_remedy(link.detail)}")
        if (session := self._client.session) is not None:
            session.count_apart()
        return "attached to the daemon"

    def store(self) -> str:
        """Stores a page of random bytes."""
        result = self._client.store(self._keys, [self._page])
        if result.stored != 1:
            raise StepError(result.reason or f"the page was not stored: {result.outcomes[0].name.lower()}")
        return f"stored a page of {format_size(_PAGE_BYTES)}"

    def match(self) -> str:
        """Finds the page."""
        with find(self._client.session, self._keys) as match:
            if len(match) != 1:
                raise StepError("the page that was stored is not found: it was evicted, or the arena is too small")
        return "found it"

    def load(self) -> str:
        """Loads the page and compares its bytes."""
        loaded = bytearray(_PAGE_BYTES)
        with find(self._client.session, self._keys) as match:
            if self._client.load(match, [loaded]) != 1:
                raise StepError("the page cannot be loaded")
        if loaded != self._page:
            raise StepError("the page has other bytes than were stored: please report it")
        return "loaded equal bytes"

    def drop(self) -> str:
        """Drops the page. A page that is being written to disk can be dropped a moment later."""
        deadline = Deadline(_TIMEOUT_S)
        while (answer := self._forget()).kept and not deadline.is_over:
            clock.sleep(_PAUSE_S)
        if answer.trouble:
            raise StepError(f"{answer.trouble}; `pagetier stats` says how the disk is, try again once it is open")
        if not answer.dropped:
            raise StepError("the page was not dropped")
        return "dropped it"

    def _forget(self) -> Flushed:
        try:
            with closing(Link(self._socket, _TIMEOUT_S)) as link:
                for descriptor in link.greet(Observe(BUILD), _TIMEOUT_S).descriptors:
                    os.close(descriptor)
                answer = link.ask(Forget(1, self._keys.data), _TIMEOUT_S)
        except LinkError as error:
            raise StepError(str(error)) from error
        if not isinstance(answer, Flushed):
            raise StepError(str(answer))
        return answer
