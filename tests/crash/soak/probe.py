"""A client that is never killed: it times the same calls all the time, and a fixed reference work before each."""

from __future__ import annotations

import os
import random
import secrets
import signal
import socket
import time
from enum import IntEnum
from typing import Final

import numpy as np

from chaos.engine import TIMEOUT_S, EngineContext
from chaos.scenario import LARGE, SMALL, chain_of
from oracle.witness import Witness
from pagetier.client import Client, Keys
from pagetier.shm._core import KEY_BYTES
from soak.latency_histogram import Times

_PROMPTS: Final = range(1, 8)
_PAUSE_S: Final = 0.005
_SAMPLE_EVERY_S: Final = 1.0
_ATTACH_S: Final = 10.0
_RESERVE_S: Final = 1.0
_TABLE_ROWS: Final = 1 << 17
_ROWS: Final = 64
_ECHO: Final = b"a message as long as a small request is, there and back again...."


class Timed(IntEnum):
    """The timed calls.

    REFUSED is a reserve that was rejected, for example after a daemon's death. GATHER and ECHO are the reference work:
    scattered memory reads as in a match, and a message to another process and back.
    """

    MATCH = 0
    RESERVE = 1
    REFUSED = 2
    GATHER = 3
    ECHO = 4


CONTROLS: Final = {Timed.MATCH: Timed.GATHER, Timed.RESERVE: Timed.ECHO}


class Probe:
    """The work of the probe's process.

    It matches pages that are always in memory, and reserves and abandons a new page.

    About once a second it also does what an engine does, so that growth caused by that is visible in its memory.
    """

    def __init__(self, context: EngineContext, times: Times, chance: int) -> None:
        self._post = context
        self._times = times
        self._rng = random.Random(chance)
        self._echo = _echo()  # before this process has threads, and a connection that the child would keep open
        self._client = Client(context.socket, timeout=TIMEOUT_S)
        self._journal = context.journal()
        self._witnesses = {size: Witness(self._client, self._journal, context.seed, size) for size in (SMALL, LARGE)}
        self._table = np.random.default_rng(chance).integers(0, 1 << 60, (_TABLE_ROWS, 8))
        self._rows = np.random.default_rng(chance).integers(0, _TABLE_ROWS, _ROWS)

    def run(self) -> None:
        """Runs until it is killed."""
        self._client.wait_attached(_ATTACH_S)
        keys = _hot_keys()
        due = time.monotonic()
        while True:
            self._time_match(keys)
            self._time_reserve(Keys(keys.namespace, secrets.token_bytes(KEY_BYTES)))
            if time.monotonic() >= due:
                due = time.monotonic() + _SAMPLE_EVERY_S
                self._be_an_engine(keys)
            time.sleep(_PAUSE_S)

    def _time_match(self, keys: Keys) -> None:
        self._times.timed(0, Timed.GATHER, lambda: self._table.take(self._rows, axis=0))
        self._times.timed(0, Timed.MATCH, lambda: self._client.match(keys)).release()

    def _time_reserve(self, keys: Keys) -> None:
        self._times.timed(0, Timed.ECHO, self._ask_echo)
        began = time.perf_counter()
        with self._client.reserve(keys, SMALL, timeout=_RESERVE_S) as reservation:
            took = time.perf_counter() - began
        self._times.note(0, Timed.RESERVE if len(reservation.granted) else Timed.REFUSED, took)

    def _ask_echo(self) -> None:
        self._echo.send(_ECHO)
        self._echo.recv(len(_ECHO))

    def _be_an_engine(self, hot: Keys) -> None:
        """Stores the hot pages if needed, loads and compares them, and looks up and stores one other prompt."""
        witness = self._witnesses[SMALL]
        if witness.verify(hot).hits < len(hot):
            witness.store(hot)
        chain = chain_of(self._post.pick(self._rng))
        witness = self._witnesses[chain.page_bytes]
        if witness.verify(chain.keys, TIMEOUT_S).available_pages < len(chain.keys):
            witness.store(chain.keys)


def _hot_keys() -> Keys:
    """Returns the pages of some prompts of small pages, concatenated."""
    chains = [chain_of(number) for number in _PROMPTS]
    return Keys(chains[0].keys.namespace, b"".join(dict.fromkeys(key for chain in chains for key in chain.keys)))


def _echo() -> socket.socket:
    """Starts a process that echoes messages and ends with this one; returns the socket to it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        while message := theirs.recv(len(_ECHO)):
            theirs.send(message)
        os._exit(0)
    theirs.close()
    return ours
