"""The functions of forked processes: a daemon, and engines that execute commands."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from eventually import PATIENCE_S, eventually, pace
from injection.colliding_pages import PAGE, SEED, SPACE, keys_of
from oracle.journal import Journal, Reported
from oracle.page_contents import words
from oracle.witness import PromptPage, Verified, Witness
from pagetier.client import Client, Hint, Match
from pagetier.client.adapters import Blocks, MatchHandle, Part, Reservation, adopt
from pagetier.client.engines.events.changes import LocationChanges
from pagetier.client.group_match import GroupKeys, GroupMatch
from pagetier.client.groups import FullAttention, SlidingWindow
from pagetier.kernels.layout import engine_layouts
from pagetier.kernels.layout.page_layout import PageLayout, Shard
from pagetier.kernels.layout.slot_map import slot_map
from pagetier.kernels.layout.transfer import PagedCache
from pagetier.shm.daemon_link import Link, LinkError
from pagetier.shm.protocol import BUILD, Flush, Observe, Save, Saved
from running_daemon import namespace

_TIMEOUT_S: Final = 3.0  # the client's: no case waits long for a daemon that is gone
_LONG_S: Final = 20.0  # other timeouts of the product, where none is tested: over while a case still waits
_MOMENT_S: Final = 0.002  # about the duration of an attach
_TOKENS, _BLOCKS, _HEADS, _DIM = 16, 8, 2, 64


def daemon(arguments: Sequence[str]) -> None:
    """Runs pagetierd until it ends."""
    from daemon_constants import run

    run(arguments)


def engine(descriptor: int, socket: Path, folder: Path) -> None:
    """Runs an attached engine until the pipe is closed, and sends the result of each command."""
    pipe = Connection(descriptor)
    actor = EngineCommands(socket, folder)
    pipe.send("attached")
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(getattr(actor, name)(*arguments))


class EngineCommands:
    """An engine that records all responses in its journal. Its public methods are the commands."""

    def __init__(self, socket: Path, folder: Path) -> None:
        self._socket = socket
        self._client = Client(socket, timeout=_TIMEOUT_S, name="actor")
        assert self._client.wait_attached(PATIENCE_S)
        self._witness = Witness(self._client, Journal.of_this_process(folder), SEED, PAGE)
        self._open: Reservation | None = None
        self._asked: tuple[list[int], Part, int] = ([], Part(), 0)
        self._kept: Match | GroupMatch | None = None

    def store(self, numbers: Iterable[int], part: int = 0, parts: int = 1) -> list[int]:
        """Stores pages and returns their outcomes."""
        return list(self._witness.store(keys_of(numbers), Part(part, parts)).codes)

    def store_plainly(self, numbers: Sequence[int]) -> list[int]:
        """Stores pages by one call, as engines do, and returns their outcomes."""
        keys, since = keys_of(numbers), time.monotonic_ns()
        self._witness.journal.write(Reported.STORING, keys.data, since)
        pages = np.stack([words(key, SEED, PAGE).view(np.uint8) for key in keys])
        result = self._client.store(keys, pages)
        self._witness.note(result, keys, since)
        return list(result.codes)

    def verify(self, numbers: Iterable[int], disk_s: float = 0.0) -> Verified:
        """Matches, loads and compares pages."""
        return self._witness.verify(keys_of(numbers), disk_s)

    def announce(self, numbers: Sequence[int]) -> set[int]:
        """Announces pages as a connector does, until all are announced, and returns those that are."""
        changed = LocationChanges[PromptPage](self._client, _LONG_S, len(numbers))
        for number, key in zip(numbers, keys_of(numbers), strict=True):
            changed.learn(key, PromptPage(number, key))
        announced: set[int] = set()

        def are_all_announced() -> bool:
            changes = changed.taken()
            announced.update(change.page.at for change in changes if change.came)
            announced.difference_update(change.page.at for change in changes if change.left)
            return len(announced) == len(numbers)

        eventually(are_all_announced)
        return announced

    def keep(self, numbers: Sequence[int]) -> bool:
        """Asks the daemon to keep pages, and returns whether it took the message."""
        return self._client.hint(keys_of(numbers), Hint.keep())

    def open(self, numbers: Sequence[int], part: int = 0, parts: int = 1, size: int = PAGE) -> int:
        """Reserves pages and returns how many were granted."""
        keys, since = keys_of(numbers), time.monotonic_ns()
        self._asked = list(numbers), Part(part, parts), since
        self._witness.journal.write(Reported.STORING, keys.data, since, part=part, parts=parts)
        self._open = self._client.reserve(keys, size, self._asked[1])
        return len(self._open.granted)

    def publish(self) -> list[int]:
        """Writes and publishes the reserved pages, and returns their outcomes."""
        assert self._open is not None
        numbers, part, since = self._asked
        keys = keys_of(numbers)
        self._witness.fill(self._open, keys, part)
        serials = np.asarray(self._open._serials)
        result = self._open.publish()
        self._witness.note(result, keys, since, part, serials)
        return list(result.codes)

    def abandon(self) -> None:
        """Abandons the reserved pages."""
        assert self._open is not None
        self._open.abandon()

    def resize(self, numbers: Sequence[int], size: int) -> None:
        """Reserves the same pages in another size, and abandons them."""
        self.open(numbers, size=size)
        self.abandon()

    def fill(self, numbers: Sequence[int], size: int) -> list[int]:
        """Stores pages of another size with arbitrary content, as they are never loaded; returns their outcomes."""
        with self._client.reserve(keys_of(numbers), size) as reservation:
            return list(reservation.publish().codes)

    def overstay(self, numbers: Sequence[int], seconds: float) -> list[int]:
        """Reserves pages, waits, and publishes them; returns their outcomes."""
        self.open(numbers)
        pace(seconds)
        return self.publish()

    def pin(self, numbers: Iterable[int]) -> bytes:
        """Pins pages and returns the match in the form for another process."""
        self._kept = self._client.match(keys_of(numbers))
        return pickle.dumps(self._kept)

    def adopt(self, handover: bytes, numbers: Sequence[int]) -> int:
        """Adopts, loads and compares pages that another process matched; returns how many were exact."""
        given: MatchHandle = pickle.loads(handover)
        with adopt(self._client.session, given) as match:
            return self._witness.load(match, keys_of(numbers))

    def match_groups(self, numbers: Sequence[int], others: Sequence[int]) -> int:
        """Matches a prompt in two groups, releases it and returns the number of pages that were pinned."""
        full = GroupKeys(FullAttention(SPACE.page_tokens), keys_of(numbers))
        window = GroupKeys(SlidingWindow(SPACE.page_tokens, 2 * SPACE.page_tokens), keys_of(others))
        with self._client.match_groups([full, window]) as match:
            return len(match)

    def prefetch(self, numbers: Iterable[int]) -> int:
        """Prefetches pages from disk and returns how many are in memory then."""
        return self._client.prefetch(keys_of(numbers), _LONG_S).wait(PATIENCE_S)

    def load_from_fleet(self, numbers: Sequence[int]) -> int:
        """Loads and compares pages of the fleet and returns how many were exact."""
        keys = keys_of(numbers)
        with self._client.match(keys) as match:
            return self._witness.load(match, keys, _LONG_S, len(keys))

    def store_blocks(self, prompt: int) -> int:
        """Stores and loads two pages of a paged cache, and returns how many were loaded."""
        raw = [np.full((2, _BLOCKS, 4, _HEADS, _DIM), prompt + layer, np.uint16) for layer in range(2)]
        layout = engine_layouts.kv_first(raw)
        cache = PagedCache(layout, PageLayout.of_model(layout, _TOKENS, _HEADS, 2), Shard())
        space = namespace(layout=cache.page.layout, salt=str(prompt))
        blocks = Blocks(cache, slot_map(np.arange(_BLOCKS), 2, _TOKENS, 4))
        keys = space.keys(range(prompt << 8, (prompt << 8) + 2 * _TOKENS))
        self._client.store(keys, blocks)
        with self._client.match(keys) as match:
            for one in raw:
                one[...] = 0
            done = self._client.load(match, blocks)
        right = all((one[:, : done * 4] == prompt + layer).all() for layer, one in enumerate(raw))
        assert right, "the loaded blocks have other bytes"
        return done

    def flush(self, tier: str | None = None) -> int:
        """Flushes all pages and returns how many were dropped."""
        return int(getattr(self._ask(Flush(1, None, tier)), "dropped", -1))

    def save(self) -> bool:
        """Saves all pages to disk and returns whether that succeeded."""

        def saved() -> Saved | None:
            reply = self._ask(Save(1))
            return reply if isinstance(reply, Saved) and (reply.synced or reply.trouble) else None

        reply = eventually(saved)
        return reply is not None and reply.synced

    def close(self) -> None:
        """Detaches."""
        self._client.close()

    def come_and_go(self) -> None:
        """Opens other clients of this process and closes them before, while and after they attach."""
        for moment in (0.0, _MOMENT_S, PATIENCE_S):
            other = Client(self._socket, timeout=_TIMEOUT_S, name="short-lived client")
            other.wait_attached(moment)
            other.close()

    def _ask(self, request: Any) -> Any:
        """Sends a request as an administrator; returns None if the daemon ends before it responds."""
        try:
            link = Link(self._socket, PATIENCE_S)
        except LinkError:
            return None
        try:
            for descriptor in link.greet(Observe(BUILD), PATIENCE_S).descriptors:
                os.close(descriptor)
            return link.ask(request, PATIENCE_S)
        except LinkError:
            return None
        finally:
            link.close()
