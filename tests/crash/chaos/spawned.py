"""Engines' processes that begin by exec, with nothing of the process that started them but descriptors.

`python -m chaos.spawned FILE` is what such a process runs; FILE is a descriptor of its Job.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec

from chaos.child_processes import live
from chaos.engine import Post, lone
from chaos.ranks import rank, scheduler


class Job(msgspec.Struct, frozen=True):
    """What a process does. index: of a rank. pipes: descriptors, to the ranks of a scheduler or to that of a rank."""

    role: str
    post: Post
    chance: int
    index: int = 0
    pipes: tuple[int, ...] = ()

    def do(self) -> None:
        """Never returns but by an exception."""
        pipes = [Connection(pipe) for pipe in self.pipes]
        if self.role == "engine":
            lone(self.post, self.chance)
        elif self.role == "scheduler":
            scheduler(self.post, self.chance, pipes)
        else:
            rank(self.post, self.chance, self.index, pipes[0])


def become(job: Job) -> NoReturn:
    """Puts a fresh interpreter that does the job in the place of this process, which was forked and has the pid."""
    file = os.memfd_create("pagetier-storm-job", 0)
    os.write(file, pickle.dumps(job))
    for descriptor in (*job.pipes, job.post.seats.file):
        os.set_inheritable(descriptor, True)
    os.execv(sys.executable, [sys.executable, "-m", "chaos.spawned", str(file)])


def main() -> None:
    """Does the job whose descriptor is named."""
    logging.getLogger("pagetier.client").disabled = True
    with os.fdopen(int(sys.argv[1]), "rb") as file:
        file.seek(0)
        job: Job = pickle.load(file)
    live(job.post.journals, job.role, job.do)


if __name__ == "__main__":
    main()
