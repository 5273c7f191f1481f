"""Keeps the engines of a round running: one for each seat, replaced when it has ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from chaos.child_processes import Child, ChildProcesses
from chaos.engine import EngineContext, single_process_engine
from chaos.ranks import RANKS, rank, scheduler
from chaos.spawned import Job, exec_job

LONE_ENGINES: Final = 3
ENGINES_OF_RANKS: Final = 2
SEATS: Final = LONE_ENGINES + ENGINES_OF_RANKS * (1 + RANKS)


class EnginePool:
    """The engines of a round.

    The seats of single-process engines come first, then those of schedulers and their ranks.
    """

    def __init__(self, processes: ChildProcesses, context: EngineContext, rng: random.Random) -> None:
        self._processes = processes
        self._post = context
        self._rng = rng
        self._engines: list[list[Child]] = [[] for _ in range(LONE_ENGINES + ENGINES_OF_RANKS)]

    @property
    def living(self) -> list[Child]:
        """The running processes of all engines."""
        return [child for engine in self._engines for child in engine if child.lives]

    def start_missing(self) -> list[Child]:
        """Starts each engine that has no process left, and returns the new processes."""
        fresh = []
        for number, engine in enumerate(self._engines):
            if not any(child.lives for child in engine):
                engine[:] = self._lone(number) if number < LONE_ENGINES else self._with_ranks(number)
                fresh += engine
        return fresh

    def _lone(self, number: int) -> list[Child]:
        chance, context = self._rng.getrandbits(32), self._at(number)
        return [self._start(Job("engine", context, chance), lambda: single_process_engine(context, chance))]

    def _with_ranks(self, number: int) -> list[Child]:
        """Returns a new scheduler and its ranks.

        Each end of a pipe is open in one process only, so that its death closes the pipe.
        """
        seat = LONE_ENGINES + (number - LONE_ENGINES) * (1 + RANKS)
        pipes = [Pipe() for _ in range(RANKS)]
        ours, theirs = [ours for ours, _ in pipes], [theirs for _, theirs in pipes]
        children = [self._scheduler(seat, ours, theirs)]
        for pipe in ours:
            pipe.close()
        children += [self._rank(seat + 1 + index, index, theirs) for index in range(RANKS)]
        for pipe in theirs:
            pipe.close()
        return children

    def _scheduler(self, seat: int, ours: list[Connection], theirs: list[Connection]) -> Child:
        chance, context = self._rng.getrandbits(32), self._at(seat)

        def live() -> None:
            for pipe in theirs:
                pipe.close()
            scheduler(context, chance, ours)

        return self._start(Job("scheduler", context, chance, pipes=tuple(pipe.fileno() for pipe in ours)), live)

    def _rank(self, seat: int, index: int, theirs: list[Connection]) -> Child:
        chance, context = self._rng.getrandbits(32), self._at(seat)

        def live() -> None:
            for other, pipe in enumerate(theirs):
                if other != index:
                    pipe.close()
            rank(context, chance, index, theirs[index])

        return self._start(Job("rank", context, chance, index, (theirs[index].fileno(),)), live)

    def _start(self, job: Job, forked: Callable[[], object]) -> Child:
        """Starts a process that runs the job, by exec or by fork."""
        action = (lambda: exec_job(job)) if job.context.scene.spawned else forked
        return self._processes.fork(job.role, action, job.context.seat)

    def _at(self, seat: int) -> EngineContext:
        self._post.heartbeats.beat(seat)
        return msgspec.structs.replace(self._post, seat=seat)
