"""A simulated client and requests for tests of the vLLM scheduler's half."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from eventually import PATIENCE_S
from pagetier.client.group_match import GroupKeys, Lookup

PAGE = 4


class FakeClient:
    """A fake client that finds what the test configures, and counts calls.

    Attributes:
        here: Tokens in memory.
        available_tokens: Tokens in memory and on disk.
        asked: Whether a prefetch has begun, which waits until `takes` is set.
    """

    def __init__(self, here: int = 0, available_tokens: int = 0) -> None:
        self.here, self.available_tokens = here, available_tokens
        self.matches = self.prefetches = self.pinned = 0
        self.answered = False
        self.asked = threading.Event()
        self.takes = threading.Event()
        self.takes.set()
        self.session: Any = FakeSession(self)
        self.limits: list[int | None] = []
        self.counted: list[Lookup] = []
        self.calls: list[Callable[[], object]] = []

    def find_groups(self, groups: list[GroupKeys], limit: int | None = None) -> Any:
        self.matches += 1
        self.limits.append(limit)
        self.pinned += 1
        most = limit if limit is not None else 1 << 30
        return Found(self, min(self.here, most), min(self.available_tokens, most))

    def prefetch(self, match: Any, timeout: float) -> Any:
        self.asked.set()
        assert self.takes.wait(PATIENCE_S)
        self.timeout = timeout
        self.prefetches += 1
        fake = self

        class Prefetch:
            pages = 1

            def wait(self, timeout: float) -> int:
                return int(fake.answered)

            def call_when_ready(self, call: Callable[[], object]) -> None:
                fake.calls.append(call)

            @property
            def ready(self) -> bool:
                return fake.answered

        return Prefetch()


class FakeSession:
    """The session of a daemon without lower tiers."""

    disk_bytes, asks_fleet = 0, False

    def __init__(self, fake: FakeClient) -> None:
        self._fake = fake

    def count_lookup(self, *counts: int) -> None:
        self._fake.counted.append(Lookup(*counts))


class Found:
    def __init__(self, fake: FakeClient, tokens: int, available: int) -> None:
        self.fake, self.tokens, self.available_tokens, self.pinned = fake, tokens, available, True
        self.asked = 10 * PAGE
        self.groups: tuple[GroupKeys, ...] = ()
        self.matches: tuple[Any, ...] = ()
        self.start_pages: tuple[int, ...] = ()
        self.lookup = Lookup(tokens // PAGE, 10 - tokens // PAGE, tokens, 0, 10 * PAGE - tokens)

    def release(self) -> None:
        self.fake.pinned -= self.pinned
        self.pinned = False

    def first_key_after(self, tokens: int) -> bytes:
        return b"%032d" % tokens

    def __enter__(self) -> Found:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def request(tokens: int = 41, name: str = "one") -> Any:
    hashes = [sha256(bytes([at])).digest() for at in range(tokens // PAGE)]
    return SimpleNamespace(
        request_id=name, num_tokens=tokens, num_computed_tokens=0, block_hashes=hashes, is_finished=lambda: False
    )


def nothing_scheduled() -> Any:
    cached = SimpleNamespace(req_ids=[], new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        total_num_scheduled_tokens=0,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={},
        scheduled_spec_decode_tokens={},
    )
