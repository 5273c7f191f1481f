"""A client that is never killed: it times the same calls all the time, and a fixed reference work before each."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from typing import Final

import numpy as np

from eventually import pace
from pagetier.client import Keys
from pagetier.shm._core import KEY_BYTES
from simulator.call_times import Call, CallTimes
from simulator.engine import EngineContext, SimulatedEngine, serve
from simulator.scenes import SMALL, Chain, chain_of

CONTROLS: Final = {Call.MATCH: Call.GATHER, Call.RESERVE: Call.ECHO}
"""The reference work that is done before a call."""

_PROMPTS: Final = range(1, 8)
_PAUSE_S: Final = 0.005
_SAMPLE_EVERY_S: Final = 1.0
_ATTACH_S: Final = 10.0
_RESERVE_S: Final = 1.0
_TABLE_ROWS: Final = 1 << 17
_ROWS: Final = 64
_ECHO: Final = b"a message as long as a small request is, there and back again...."


def probe(context: EngineContext, chance: int) -> None:
    """Matches pages that are always in memory, and reserves and abandons a new page, until it is killed.

    About once a second it also does what an engine does, so that growth caused by that is visible in its memory.
    """
    echo = _echo()  # before this process has threads, and a connection that the child would keep open
    engine, times = SimulatedEngine(context, chance), CallTimes(context.folder)
    engine.client.wait_attached(_ATTACH_S)
    table = np.random.default_rng(chance).integers(0, 1 << 60, (_TABLE_ROWS, 8))
    rows = np.random.default_rng(chance).integers(0, _TABLE_ROWS, _ROWS)
    hot, due = _hot_pages(), time.monotonic()
    while True:
        times.timed(Call.GATHER, table.take, rows, axis=0)
        times.timed(Call.MATCH, engine.client.match, hot.keys).release()
        times.timed(Call.ECHO, _ask, echo)
        _time_reserve(engine, times, Keys(hot.keys.namespace, secrets.token_bytes(KEY_BYTES)))
        if time.monotonic() >= due:
            due = time.monotonic() + _SAMPLE_EVERY_S
            if engine.verify(hot).hits < len(hot.keys):
                engine.witness(hot).store(hot.keys)
            serve(engine)
        pace(_PAUSE_S)


def _time_reserve(engine: SimulatedEngine, times: CallTimes, keys: Keys) -> None:
    began = time.perf_counter()
    with engine.client.reserve(keys, SMALL, timeout=_RESERVE_S) as reservation:
        took = time.perf_counter() - began
    times.note(Call.RESERVE if len(reservation.granted) else Call.REFUSED, took)


def _hot_pages() -> Chain:
    """Returns the pages of some prompts of small pages, concatenated."""
    chains = [chain_of(number) for number in _PROMPTS]
    keys = b"".join(dict.fromkeys(key for chain in chains for key in chain.keys))
    return Chain(Keys(chains[0].keys.namespace, keys), SMALL)


def _ask(echo: socket.socket) -> None:
    echo.send(_ECHO)
    echo.recv(len(_ECHO))


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
