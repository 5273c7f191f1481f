"""Starts engine processes by exec, so that they share only descriptors with the process that started them.

Such a process runs `python -m chaos.spawned FILE`; FILE is a descriptor of its Job.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec

from chaos.child_processes import run_and_exit
from chaos.engine import EngineContext, single_process_engine
from chaos.ranks import rank, scheduler


class Job(msgspec.Struct, frozen=True):
    """The work of a process.

    Attributes:
        role: "engine", "scheduler" or "rank".
        context: The context of the process.
        chance: The seed of its random generator.
        index: The number of a rank.
        pipes: The descriptors of the pipes: a scheduler's to its ranks, or a rank's to its scheduler.
    """

    role: str
    context: EngineContext
    chance: int
    index: int = 0
    pipes: tuple[int, ...] = ()

    def do(self) -> None:
        """Runs the job; ends only by an exception."""
        pipes = [Connection(pipe) for pipe in self.pipes]
        if self.role == "engine":
            single_process_engine(self.context, self.chance)
        elif self.role == "scheduler":
            scheduler(self.context, self.chance, pipes)
        else:
            rank(self.context, self.chance, self.index, pipes[0])


def exec_job(job: Job) -> NoReturn:
    """Replaces this forked process by a new interpreter that runs the job; the pid stays."""
    file = os.memfd_create("pagetier-storm-job", 0)
    os.write(file, pickle.dumps(job))
    for descriptor in (*job.pipes, job.context.heartbeats.file):
        os.set_inheritable(descriptor, True)
    os.execv(sys.executable, [sys.executable, "-m", "chaos.spawned", str(file)])


def main() -> None:
    """Runs the job whose descriptor is the first argument."""
    logging.getLogger("pagetier.client").disabled = True
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        job: Job = pickle.load(file)
    run_and_exit(job.context.journals, job.role, job.do)


if __name__ == "__main__":
    main()
