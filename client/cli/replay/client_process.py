"""One client of a replay, in a process of its own: is dealt ranges of requests, and says what came of each."""

from __future__ import annotations

import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from pagetier.client.cli.replay.page_content import Pattern, wrong_pages
from pagetier.client.cli.replay.report import Tally
from pagetier.client.cli.replay.trace import Trace
from pagetier.client.client import Client
from pagetier.client.keys import Keys, Namespace

ATTACH_S: Final = 10.0
DEADLINE_S: Final = 30.0
"""A replay measures hits and not deadlines, those of the disk neither; a daemon that is gone refuses at once."""


class Job(msgspec.Struct, frozen=True, eq=False):
    """What all clients of a replay are told. keys: of each block of the trace, by its number, 32 bytes a row."""

    socket: Path
    trace: Trace
    namespace: Namespace
    keys: npt.NDArray[np.uint8]
    page_bytes: int


class Ready(msgspec.Struct, frozen=True):
    """A client's first word: whether it found the daemon."""

    attached: bool


def work(job: Job, pipe: Connection) -> None:
    """Ranges come in by the pipe; Ready and then a Tally for each range go out. Ends when the other end is closed."""
    # A Ctrl-C goes to all processes of a terminal; it is the parent who ends this one, by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Client(job.socket, deadline=DEADLINE_S, name="pagetier-replay") as client:
        replayer = Replayer(job, client)
        try:
            pipe.send(Ready(client.wait_attached(ATTACH_S)))
            while True:
                pipe.send(replayer.replay_all(pipe.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


class Replayer:
    """Does for each request what an engine would: match, load, and store the whole prompt while it is pinned.

    Loading brings in what is on disk; that is not pinned.
    """

    def __init__(self, job: Job, client: Client) -> None:
        self._job = job
        self._client = client
        self._pattern = Pattern(job.page_bytes)

    def replay_all(self, requests: range) -> Tally:
        """Replays requests in their order."""
        tally = Tally()
        for request in requests:
            self.replay(request, tally)
        return tally

    def replay(self, request: int, tally: Tally) -> None:
        """Replays one request and counts it."""
        trace = self._job.trace
        blocks = trace.blocks(request)
        tally.requests += 1
        tally.prompt_tokens += int(trace.prompt_tokens[request])
        tally.asked += len(blocks)
        if len(blocks):
            self._handle(self._job.keys[blocks], tally)

    def _handle(self, rows: npt.NDArray[np.uint8], tally: Tally) -> None:
        keys = Keys(self._job.namespace, rows.tobytes())
        pages = self._pattern.of(rows)
        began = time.perf_counter()
        with self._client.match(keys) as match:
            matched = time.perf_counter()
            space = self._pattern.space(match.reach)
            asked = time.perf_counter()
            loaded = self._client.load(match, space) if match.reach else 0
            tally.load_seconds += time.perf_counter() - asked + matched - began
            tally.loaded += loaded
            tally.from_disk += match.from_disk
            tally.wrong += wrong_pages(space[:loaded], pages[:loaded])
            self._store(keys, pages, tally)

    def _store(self, keys: Keys, pages: npt.NDArray[np.uint64], tally: Tally) -> None:
        began = time.perf_counter()
        result = self._client.store(keys, pages)
        tally.store_seconds += time.perf_counter() - began
        tally.stored += result.stored
        tally.present += result.present
        tally.pending += result.pending
        tally.refused += result.refused
