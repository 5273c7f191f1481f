"""Runs an engine process until it dies: it matches, loads, compares and stores, and releases pages in every way."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from eventually import pace
from oracle.journal import Reported
from oracle.witness import PromptPage, Verified, Witness
from pagetier.client import Client, Keys
from pagetier.client.adapters import reserve_async
from pagetier.client.engines.events.changes import LocationChanges
from simulator.chapters import Chapters
from simulator.heartbeats import Heartbeats
from simulator.scenes import LARGE, SMALL, Chain, SimulatedScene, chain_of

TIMEOUT_S: Final = 0.3
_ATTACH_S: Final = 1.0
_PIN_S: Final = 0.03
_LEASE_S: Final = 30.0
_MOST_ANNOUNCED: Final = 1 << 12


class EngineContext(msgspec.Struct, frozen=True):
    """The context of an engine process, the same for all of a scene except for the seat.

    `folder` is for the durations of calls and for tracebacks.
    """

    scene: SimulatedScene
    socket: Path
    folder: Path
    chapters: Chapters
    heartbeats: Heartbeats
    seed: int
    seat: int = 0


class SimulatedEngine:
    """An attached process with a journal and a random generator; `chance` is its seed."""

    def __init__(self, context: EngineContext, chance: int, client: Client | None = None) -> None:
        self.context = context
        self.rng = random.Random(chance)
        self.journal = context.chapters.journal()
        self.client = Client(context.socket, timeout=TIMEOUT_S) if client is None else client
        self._witnesses = {size: Witness(self.client, self.journal, context.seed, size) for size in (SMALL, LARGE)}
        self._changes = LocationChanges[PromptPage](self.client, _LEASE_S, _MOST_ANNOUNCED)
        self.client.wait_attached(_ATTACH_S)

    def witness(self, chain: Chain) -> Witness:
        """Returns the witness for pages of this chain's size."""
        return self._witnesses[chain.page_bytes]

    def next_chain(self) -> Chain:
        """Returns the prompt of the next request."""
        return chain_of(self.next_number())

    def next_number(self) -> int:
        """Returns the number of the prompt of the next request."""
        return self.context.scene.pick(self.rng, self.context.heartbeats.newest)

    def verify(self, chain: Chain) -> Verified:
        """Matches, loads and compares the pages of a prompt, and returns the result."""
        verified = self.witness(chain).verify(chain.keys, self.rng.choice((0.0, TIMEOUT_S)))
        self.context.heartbeats.verified(self.context.seat, verified.loaded * chain.page_bytes)
        return verified

    def announce(self, chain: Chain) -> None:
        """Reads which pages came and left, as a connector that announces them does, and adds those of a prompt."""
        learn(self._changes, chain.keys)
        self._changes.taken()

    def pause(self) -> None:
        """Counts a request and waits for a random time before the next one."""
        self.context.heartbeats.beat(self.context.seat, 1)
        pace(self.rng.uniform(0, self.context.scene.pause))


def learn(changes: LocationChanges[PromptPage], keys: Keys) -> None:
    """Adds pages to those that are announced."""
    for at, key in enumerate(keys):
        changes.learn(key, PromptPage(at, key))


def single_process_engine(context: EngineContext, chance: int) -> None:
    """Runs an engine of one process. Never returns; sometimes the process exits by itself."""
    os.nice(context.scene.nice)
    engine = SimulatedEngine(context, chance)
    weighted: list[tuple[Callable[[SimulatedEngine], None], float]] = [
        (serve, 0.86), (_pin, 0.06), (_cancel_store, 0.04), (_fork, 0.01), (_ask_disk, 0.02), (_leave, 0.01),
    ]  # fmt: skip
    actions, weights = zip(*weighted, strict=True)
    while True:
        engine.rng.choices(actions, weights)[0](engine)
        engine.pause()


def serve(engine: SimulatedEngine) -> None:
    """Serves a request: loads the cached pages, computes and stores the rest, and looks up all of them."""
    chain = engine.next_chain()
    if engine.verify(chain).available_pages < len(chain.keys):
        engine.witness(chain).store(chain.keys)
        engine.verify(chain)
    engine.announce(chain)


def _pin(engine: SimulatedEngine) -> None:
    """Pins pages and compares them twice: they must not change while they are pinned."""
    chain = engine.next_chain()
    witness = engine.witness(chain)
    since = time.monotonic_ns()
    with engine.client.match(chain.keys) as match:
        witness.journal.write(Reported.HIT, chain.keys[: len(match)].data, since)
        for _ in range(2):
            engine.context.heartbeats.verified(engine.context.seat, witness.load(match, chain.keys) * chain.page_bytes)
            pace(engine.rng.uniform(0, _PIN_S))


def _cancel_store(engine: SimulatedEngine) -> None:
    """Reserves pages and abandons them: partly written, or before the response of the daemon arrives."""
    chain = engine.next_chain()
    witness = engine.witness(chain)
    witness.journal.write(Reported.STORING, chain.keys.data)
    if engine.rng.random() < 0.5:
        reserve_async(engine.client, chain.keys, chain.page_bytes)
        return
    with engine.client.reserve(chain.keys, chain.page_bytes) as reservation:
        witness.fill(reservation, chain.keys)


def _ask_disk(engine: SimulatedEngine) -> None:
    """Prefetches pages as a scheduler does, without waiting for them."""
    engine.client.prefetch(engine.next_chain().keys, TIMEOUT_S)


def _fork(engine: SimulatedEngine) -> None:
    """Forks the attached process; the child attaches again, serves some requests and exits without detaching."""
    chance = engine.rng.getrandbits(32)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    engine.rng = random.Random(chance)
    engine.journal = engine.context.chapters.journal()
    for witness in engine._witnesses.values():
        witness.journal = engine.journal
    engine.client.wait_attached(_ATTACH_S)
    for _ in range(3):
        serve(engine)
    os._exit(0)


def _leave(engine: SimulatedEngine) -> None:
    """Exits, with or without detaching."""
    if engine.rng.random() < 0.5:
        engine.client.close()
    os._exit(0)
