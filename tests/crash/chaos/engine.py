"""What an engine's process does until it dies: it matches, loads, compares and stores, and lets go in every way."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from chaos.heartbeat import Seats
from chaos.scenario import LARGE, SMALL, Chain, Scene, chain_of, pick
from oracle.journal import Journal, Told
from oracle.witness import Looked, Witness
from pagetier.client import Client

TIMEOUT_S: Final = 0.3
_ATTACH_S: Final = 1.0
_HOLD_S: Final = 0.03
_NICE: Final = 10  # as the disk worker is: beside engines that are not and never rest it gets nothing done


class Post(msgspec.Struct, frozen=True):
    """Where a process works: the same for all of a round but the seat. began, ends: CLOCK_MONOTONIC in seconds."""

    scene: Scene
    socket: Path
    journals: Path
    seats: Seats
    began: float
    ends: float
    seed: int
    seat: int = 0

    @property
    def progress(self) -> float:
        """How much of the round is over, 0 to 1."""
        return min(1.0, (time.monotonic() - self.began) / (self.ends - self.began))

    def pick(self, rng: random.Random) -> int:
        """The number of the prompt that the next request is about."""
        return pick(rng, self.scene, self.progress)

    def journal(self) -> Journal:
        """A new one, for a process that has just begun."""
        return Journal.of_this_process(self.journals)


class Engine:
    """An attached process with a journal, and chance of its own. chance: a seed."""

    def __init__(self, post: Post, chance: int) -> None:
        os.nice(_NICE)
        self.post = post
        self.rng = random.Random(chance)
        self.journal = post.journal()
        self.client = Client(post.socket, timeout=TIMEOUT_S)
        self._witnesses = {size: Witness(self.client, self.journal, post.seed, size) for size in (SMALL, LARGE)}
        self.client.wait_attached(_ATTACH_S)

    def witness(self, chain: Chain) -> Witness:
        """For pages of this size."""
        return self._witnesses[chain.page_bytes]

    def next_chain(self) -> Chain:
        """What the next request is about."""
        return chain_of(self.next_number())

    def next_number(self) -> int:
        """The same as its number."""
        return self.post.pick(self.rng)

    def look(self, chain: Chain) -> Looked:
        """Matches, loads and compares."""
        looked = self.witness(chain).look(chain.keys, self.rng.choice((0.0, TIMEOUT_S)))
        self.post.seats.verified(self.post.seat, looked.loaded * chain.page_bytes)
        return looked

    def pause(self) -> None:
        """Between two requests."""
        self.post.seats.beat(self.post.seat)
        time.sleep(self.rng.uniform(0, self.post.scene.pause))


def lone(post: Post, chance: int) -> None:
    """An engine of one process. Never returns; sometimes it leaves by itself."""
    engine = Engine(post, chance)
    deeds: list[tuple[Callable[[Engine], None], float]] = [
        (_serve, 0.86), (_hold, 0.06), (_change_mind, 0.04), (_fork, 0.01), (_ask_disk, 0.02), (_leave, 0.01),
    ]  # fmt: skip
    actions, weights = zip(*deeds, strict=True)
    while True:
        engine.rng.choices(actions, weights)[0](engine)
        engine.pause()


def _serve(engine: Engine) -> None:
    """A request: what is cached is loaded, the rest computed and stored, and then it is there."""
    chain = engine.next_chain()
    if engine.look(chain).available_pages < len(chain.keys):
        engine.witness(chain).store(chain.keys)
        engine.look(chain)


def _hold(engine: Engine) -> None:
    """Pages stay what they are as long as they are pinned."""
    chain = engine.next_chain()
    witness = engine.witness(chain)
    since = time.monotonic_ns()
    with engine.client.match(chain.keys) as match:
        witness.journal.write(Told.HIT, chain.keys[: len(match)].data, since)
        for _ in range(2):
            engine.post.seats.verified(engine.post.seat, witness.load(match, chain.keys) * chain.page_bytes)
            time.sleep(engine.rng.uniform(0, _HOLD_S))


def _change_mind(engine: Engine) -> None:
    """Room that was asked for is given back, half written, or never collected."""
    chain = engine.next_chain()
    witness = engine.witness(chain)
    witness.journal.write(Told.STORING, chain.keys.data)
    if engine.rng.random() < 0.5:
        engine.client.reserve_async(chain.keys, chain.page_bytes)
        return
    with engine.client.reserve(chain.keys, chain.page_bytes) as reservation:
        witness.fill(reservation, chain.keys)


def _ask_disk(engine: Engine) -> None:
    """A scheduler asks for pages and does not wait for them."""
    engine.client.prefetch(engine.next_chain().keys, TIMEOUT_S)


def _fork(engine: Engine) -> None:
    """An attached process forks; the child attaches anew, works a little and ends without a word."""
    chance = engine.rng.getrandbits(32)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    engine.rng = random.Random(chance)
    engine.journal = engine.post.journal()
    for witness in engine._witnesses.values():
        witness.journal = engine.journal
    engine.client.wait_attached(_ATTACH_S)
    for _ in range(3):
        _serve(engine)
    os._exit(0)


def _leave(engine: Engine) -> None:
    """An end of its own: with or without a goodbye."""
    if engine.rng.random() < 0.5:
        engine.client.close()
    os._exit(0)
