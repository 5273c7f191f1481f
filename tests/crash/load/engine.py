"""An engine of the load test: it stores new prompts, and loads those of other engines."""

from __future__ import annotations

import os
import random
import time
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec

from chaos.scenario import LARGE, SMALL, Chain, chain_of
from load.shared_counters import Column, SharedCounters
from oracle.journal import Journal
from oracle.witness import Witness
from pagetier.client import Client, Keys, Match, Part, Reservation
from pagetier.client.paged_blocks import WHOLE
from pagetier.kernels.host.buffers import HostBuffers
from soak.latency_histogram import Times

TIMEOUT_S: Final = 30.0
_BACK: Final = 3
_REASONS: Final = "reasons"


class Call(IntEnum):
    """The timed calls."""

    MATCH = 0
    RESERVE = 1
    LOAD = 2
    STORE = 3


class LoadContext(msgspec.Struct, frozen=True):
    """The context of an engine: the shared state, and its seat."""

    socket: Path
    journals: Path
    times: Times
    counters: SharedCounters
    seed: int
    seat: int
    seats: int
    nice: int

    def prompt(self, turn: int, seat: int) -> Chain:
        """Returns the prompt that the engine in this seat stores in this turn; prompts share only their heads."""
        return chain_of(turn * (self.seats | 1) + seat)


class TimedClient(Client):
    """A client that records the durations of its calls."""

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        super().__init__(context.socket, timeout=TIMEOUT_S, name=f"engine {context.seat}", threads=1)

    def match(self, keys: Keys) -> Match:
        """Implements Client.match()."""
        return self._context.times.timed(self._context.seat, Call.MATCH, lambda: Client.match(self, keys))

    def load(self, match: Match, out: HostBuffers, first: int = 0, timeout: float | None = None) -> int:  # type: ignore[override]
        """Implements Client.load() for pages in memory."""
        call = lambda: Client.load(self, match, out, first, timeout)  # noqa: E731
        return self._context.times.timed(self._context.seat, Call.LOAD, call)

    def reserve(  # type: ignore[override]
        self, keys: Keys, sizes: int, part: Part = WHOLE, timeout: float | None = None
    ) -> Reservation:
        """Implements Client.reserve()."""
        call = lambda: Client.reserve(self, keys, sizes, part, timeout)  # noqa: E731
        return self._context.times.timed(self._context.seat, Call.RESERVE, call)


class BusyEngine:
    """The work of a forked engine."""

    def __init__(self, context: LoadContext) -> None:
        os.nice(context.nice)
        self._context = context
        self._rng = random.Random(context.seed * context.seats + context.seat)
        self._journal = Journal.of_this_process(context.journals)
        self._client = TimedClient(context)
        self._witnesses = {size: Witness(self._client, self._journal, context.seed, size) for size in (SMALL, LARGE)}

    def run(self) -> None:
        """Runs until it is killed. Raises RuntimeError if it cannot attach."""
        if not self._client.wait_attached(TIMEOUT_S):
            raise RuntimeError("the engine cannot attach to the daemon")
        self._count(Column.ATTACHED, 1)
        turn = 0
        while True:
            self._store(self._context.prompt(turn, self._context.seat))
            self._match(self._others())
            self._count(Column.REQUESTS, 1)
            turn += 1

    def _others(self) -> Chain:
        """Returns one of the last prompts of another engine."""
        seat = self._rng.randrange(self._context.seats)
        last = self._context.counters.of(seat, Column.REQUESTS) - 1
        return self._context.prompt(max(0, last - self._rng.randrange(_BACK)), seat)

    def _store(self, chain: Chain) -> None:
        """Stores a prompt as an engine does: after a match."""
        self._match(chain)
        began = time.perf_counter()
        result = self._witnesses[chain.page_bytes].store(chain.keys)
        self._context.times.note(self._context.seat, Call.STORE, time.perf_counter() - began)
        counts = (result.stored, result.present, result.pending, result.refused)
        if result.refused:
            with (self._context.journals / _REASONS).open("a") as file:
                file.write(f"{result.reason}\n")
        for column, count in zip((Column.STORED, Column.PRESENT, Column.PENDING, Column.REFUSED), counts, strict=True):
            self._count(column, count)

    def _match(self, chain: Chain) -> None:
        self._count(Column.LOADED, self._witnesses[chain.page_bytes].verify(chain.keys).loaded)

    def _count(self, column: Column, count: int) -> None:
        self._context.counters.add(self._context.seat, column, count)


def reasons(journals: Path) -> list[str]:
    """Returns the reasons of rejected stores, one line each."""
    path = journals / _REASONS
    return path.read_text().splitlines() if path.exists() else []
