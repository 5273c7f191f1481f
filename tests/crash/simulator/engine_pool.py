"""Keeps the engines of a scene running: each is replaced when it has ended.

An engine process is forked, or started by exec as `python -m simulator.engine_pool FILE`, so that it shares only
descriptors with the process that started it; FILE is a descriptor of its Job.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import socket
import sys
from collections.abc import Collection, Sequence
from multiprocessing.connection import Connection
from typing import Final, NoReturn

import msgspec

from simulator.busy_engine import busy_engine
from simulator.children import Child, ChildProcesses, play
from simulator.engine import EngineContext, single_process_engine
from simulator.fleet_engine import fleet_engine
from simulator.ranks import RANKS, rank, scheduler
from simulator.scenes import SimulatedScene

_ALONE: Final = {"engine": single_process_engine, "busy engine": busy_engine, "fleet engine": fleet_engine}


class Job(msgspec.Struct, frozen=True):
    """The work of a process.

    Attributes:
        role: "engine", "busy engine", "fleet engine", "scheduler" or "rank".
        context: The context of the process.
        chance: The seed of its random generator.
        index: The number of a rank.
        pipes: The descriptors of the pipes: a scheduler's to its ranks, or a rank's to its scheduler.
    """

    role: str
    context: EngineContext
    chance: int
    index: int = 0
    pipes: Sequence[int] = ()

    def do(self) -> None:
        """Runs the job; ends only by an exception."""
        pipes = [Connection(pipe) for pipe in self.pipes]
        if self.role == "scheduler":
            scheduler(self.context, self.chance, pipes)
        elif self.role == "rank":
            rank(self.context, self.chance, self.index, pipes[0])
        else:
            _ALONE[self.role](self.context, self.chance)

    def do_in_new_interpreter(self) -> NoReturn:
        """Replaces this forked process by a new interpreter that runs the job; the pid stays."""
        file = os.memfd_create("pagetier-storm-job", 0)
        os.write(file, pickle.dumps(self))
        for descriptor in (*self.pipes, self.context.heartbeats.file):
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, [sys.executable, "-m", "simulator.engine_pool", str(file)])


class EnginePool:
    """The engines of a scene. The seats of single-process engines come first, then those of schedulers and ranks."""

    def __init__(self, processes: ChildProcesses, context: EngineContext, rng: random.Random) -> None:
        self._processes = processes
        self._context = context
        self._rng = rng
        lone, seats = context.scene.engines, seats_of(context.scene)
        self._engines: dict[int, list[Child]] = {seat: [] for seat in (*range(lone), *range(lone, seats, 1 + RANKS))}

    @property
    def living(self) -> list[Child]:
        """The running processes of all engines."""
        return [child for engine in self._engines.values() for child in engine if child.lives]

    def start_missing(self) -> list[Child]:
        """Starts each engine that has no process left, and returns the new processes."""
        fresh, scene = [], self._context.scene
        for seat, engine in self._engines.items():
            if not any(child.lives for child in engine):
                engine[:] = [self._start(scene.role, seat)] if seat < scene.engines else self._with_ranks(seat)
                fresh += engine
        return fresh

    def _with_ranks(self, seat: int) -> list[Child]:
        """Returns a new scheduler and its ranks.

        Each end of a pipe is open in one process only, so that its death closes the pipe.
        """
        pipes = [socket.socketpair() for _ in range(RANKS)]
        ours, theirs = ([pipe[end].detach() for pipe in pipes] for end in range(2))
        children = [self._start("scheduler", seat, 0, ours, theirs)]
        _close(ours)
        children += [self._start("rank", seat + 1 + at, at, [theirs[at]], theirs) for at in range(RANKS)]
        _close(theirs)
        return children

    def _start(
        self, role: str, seat: int, index: int = 0, pipes: Sequence[int] = (), inherited: Collection[int] = ()
    ) -> Child:
        """Starts a process that runs the job, by exec or by fork; it closes inherited descriptors of others."""
        self._context.heartbeats.beat(seat)
        context = msgspec.structs.replace(self._context, seat=seat)
        job = Job(role, context, self._rng.getrandbits(32), index, pipes)

        def live() -> None:
            _close(set(inherited) - set(pipes))
            job.do_in_new_interpreter() if context.scene.spawned else job.do()

        return self._processes.fork(role, live, seat)


def seats_of(scene: SimulatedScene) -> int:
    """Returns the number of seats of all engines of a scene."""
    return scene.engines + scene.rank_engines * (1 + RANKS)


def _close(descriptors: Collection[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main() -> None:
    """Runs the job whose descriptor is the first argument."""
    logging.getLogger("pagetier.client").disabled = True
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        job: Job = pickle.load(file)
    play(job.context.folder, job.role, job.do)


if __name__ == "__main__":
    main()
