"""An engine that stores new prompts as fast as it can, and loads those of other engines; its calls are timed."""

from __future__ import annotations

import os
import time
from typing import Final

from pagetier.client import Client
from simulator.call_times import Call, CallTimes
from simulator.engine import EngineContext, SimulatedEngine
from simulator.scenes import Chain, chain_of

_TIMEOUT_S: Final = 30.0
_BACK: Final = 3


def busy_engine(context: EngineContext, chance: int) -> None:
    """Runs until it is killed. Raises RuntimeError if it cannot attach."""
    os.nice(context.scene.nice)
    client = Client(context.socket, timeout=_TIMEOUT_S, name=f"engine {context.seat}", threads=1)
    times = CallTimes(context.folder)
    times.time_calls_of(client)
    engine = SimulatedEngine(context, chance, client)
    if not client.wait_attached(_TIMEOUT_S):
        raise RuntimeError("the engine cannot attach to the daemon")
    turn = 0
    while True:
        _store(engine, _prompt(engine, turn, context.seat), times)
        engine.verify(_prompt_of_another(engine))
        engine.context.heartbeats.beat(context.seat, 1)
        turn += 1


def _prompt(engine: SimulatedEngine, turn: int, seat: int) -> Chain:
    """Returns the prompt that the engine in this seat stores in this turn; prompts share only their heads."""
    scene = engine.context.scene
    return chain_of((turn * (scene.engines | 1) + seat) % scene.prompts)


def _prompt_of_another(engine: SimulatedEngine) -> Chain:
    """Returns one of the last prompts of another engine."""
    seat = engine.rng.randrange(engine.context.scene.engines)
    last = engine.context.heartbeats.steps[seat] - 1
    return _prompt(engine, max(0, last - engine.rng.randrange(_BACK)), seat)


def _store(engine: SimulatedEngine, chain: Chain, times: CallTimes) -> None:
    """Stores a prompt as an engine does: after a match."""
    engine.verify(chain)
    began = time.perf_counter()
    engine.witness(chain).store(chain.keys)
    times.note(Call.STORE, time.perf_counter() - began)
