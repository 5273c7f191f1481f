"""An engine of three processes: a scheduler that holds the pins and decides, and two ranks that copy their parts."""

from __future__ import annotations

import contextlib
import os
import time
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from oracle.journal import Reported
from pagetier.client import Match
from pagetier.client.adapters import MatchHandle, Part, adopt
from simulator.engine import EngineContext, SimulatedEngine
from simulator.scenes import Chain, chain_of

RANKS: Final = 2
_ANSWER_S: Final = 5.0
_AWAY: Final = -1


class RankCommand(msgspec.Struct, frozen=True):
    """A command of the scheduler to a rank: load the pages of `handover`, or store a part of the prompt without it."""

    number: int
    handover: MatchHandle | None = None


def scheduler(context: EngineContext, chance: int, ranks: list[Connection]) -> None:
    """Serves requests until it is killed. If one rank ends, it continues with the other; without ranks it exits."""
    os.nice(context.scene.nice)
    engine = SimulatedEngine(context, chance)
    while ranks:
        number = engine.next_number()
        if _load(engine, number, ranks) < len(chain_of(number).keys):
            _request(ranks, RankCommand(number))
            engine.verify(chain_of(number))
        engine.announce(chain_of(number))
        engine.pause()
    os._exit(0)


def rank(context: EngineContext, chance: int, index: int, commands: Connection) -> None:
    """Executes the scheduler's commands until the scheduler is gone, then exits with or without detaching."""
    os.nice(context.scene.nice)
    engine = SimulatedEngine(context, chance)
    with contextlib.suppress(EOFError, OSError):
        while True:
            command = _next(engine, commands)
            commands.send(_execute(engine, command, index))
    if engine.rng.random() < 0.5:
        engine.client.close()
    os._exit(0)


def _next(engine: SimulatedEngine, commands: Connection) -> RankCommand:
    while not commands.poll(0.5):
        engine.context.heartbeats.beat(engine.context.seat)
    engine.context.heartbeats.beat(engine.context.seat)
    command = commands.recv()
    assert isinstance(command, RankCommand)
    return command


def _execute(engine: SimulatedEngine, command: RankCommand, index: int) -> int:
    """Returns the number of pages loaded, or adopted if fewer; _AWAY if there are no segments to load from."""
    chain = chain_of(command.number)
    if command.handover is None:
        return engine.witness(chain).store(chain.keys, Part(index, RANKS)).stored
    session = engine.client.session
    if session is None or session.segments_id != command.handover.segments_id:
        return _AWAY
    with adopt(session, command.handover) as match:
        right = engine.witness(chain).load(match, chain.keys)
        engine.context.heartbeats.verified(engine.context.seat, right * chain.page_bytes)
        return len(match)


def _load(engine: SimulatedEngine, number: int, ranks: list[Connection]) -> int:
    """Matches a prompt and has the ranks load it. Returns the number of pages that are cached, in any tier."""
    chain = chain_of(number)
    since = time.monotonic_ns()
    with engine.client.match(chain.keys) as match:
        if not len(match):
            return match.available_pages
        engine.journal.write(Reported.HIT, chain.keys[: len(match)].data, since)
        for adopted in _request(ranks, RankCommand(number, match.to_handle())):
            _check_adopted(engine, chain, match, adopted)
        return match.available_pages


def _check_adopted(engine: SimulatedEngine, chain: Chain, match: Match, adopted: int) -> None:
    """Records an error unless all pages that are pinned here could be adopted."""
    if adopted not in (_AWAY, len(match)):
        note = f"a rank adopted only {adopted} of {len(match)} pages that the scheduler had pinned"
        engine.journal.write(Reported.WRONG, chain.keys[max(adopted, 0)], note=note)


def _request(ranks: list[Connection], command: RankCommand) -> list[int]:
    """Sends a command to all ranks and returns their results; ranks that do not respond are dropped from `ranks`."""
    reached = [pipe for pipe in ranks if _send(pipe, command)]
    answers = {pipe: _answer(pipe) for pipe in reached}
    ranks[:] = [pipe for pipe in reached if answers[pipe] is not None]
    return [answer for answer in answers.values() if answer is not None]


def _send(pipe: Connection, command: RankCommand) -> bool:
    try:
        pipe.send(command)
    except OSError:
        return False
    return True


def _answer(pipe: Connection) -> int | None:
    try:
        return int(pipe.recv()) if pipe.poll(_ANSWER_S) else None
    except (EOFError, OSError):
        return None
