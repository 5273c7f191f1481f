"""An engine that loads what its host and the fleet have, compares it, and stores the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from fleet_questions import hit_in_fleet
from oracle.journal import Reported
from simulator.engine import TIMEOUT_S, EngineContext, SimulatedEngine
from simulator.scenes import Chain


def fleet_engine(context: EngineContext, chance: int) -> None:
    """Runs until it is killed or leaves by itself, with or without detaching."""
    os.nice(context.scene.nice)
    engine = SimulatedEngine(context, chance)
    ways: tuple[Callable[[SimulatedEngine, Chain], int], ...] = (load, bring_and_load)
    while engine.rng.random() > 0.005:
        chain = engine.next_chain()
        if engine.rng.choice(ways)(engine, chain) < len(chain.keys):
            engine.witness(chain).store(chain.keys)
            engine.verify(chain)
        engine.announce(chain)
        engine.pause()
    if engine.rng.random() < 0.5:
        engine.client.close()
    os._exit(0)


def load(engine: SimulatedEngine, chain: Chain, timeout: float = TIMEOUT_S) -> int:
    """Loads a prompt in one call, from wherever its pages are. Returns the number of right pages."""
    witness, since = engine.witness(chain), time.monotonic_ns()
    with engine.client.match(chain.keys) as match:
        witness.journal.write(Reported.HIT, chain.keys[: len(match)].data, since)
        right = witness.load(match, chain.keys, timeout, len(chain.keys))
    engine.context.heartbeats.verified(engine.context.seat, right * chain.page_bytes)
    return right


def bring_and_load(engine: SimulatedEngine, chain: Chain) -> int:
    """Locates a prompt as a scheduler does, prefetches what the fleet has, and loads it. Returns as load()."""
    hit = hit_in_fleet(engine.client, chain.keys, TIMEOUT_S)
    if hit is not None:
        engine.client.prefetch(hit, TIMEOUT_S).wait(TIMEOUT_S)
    return engine.verify(chain).loaded
