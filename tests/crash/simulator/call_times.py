"""Records the durations of calls in files, one write() for each call, which survive the calling process."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np

from pagetier.client import Client

_T = TypeVar("_T")
_SUFFIX: Final = ".times"
_RECORD: Final = struct.Struct("<dfB")
_ROW: Final = np.dtype([("at", "<f8"), ("took", "<f4"), ("call", "u1")])


class Call(IntEnum):
    """The timed calls.

    STORE is a whole store with its reserve. REFUSED is a reserve that was rejected, for example after a daemon's death.
    GATHER and ECHO are the probe's reference work: scattered memory reads as in a match, and a message to another
    process and back.
    """

    MATCH = 0
    RESERVE = 1
    LOAD = 2
    STORE = 3
    REFUSED = 4
    GATHER = 5
    ECHO = 6


class CallTimes:
    """The file of the calling process in a folder."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}-{time.monotonic_ns()}{_SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, call: Call, seconds: float) -> None:
        """Records one call that has just ended."""
        os.write(self._file, _RECORD.pack(time.monotonic(), seconds, call))

    def timed(self, call: Call, action: Callable[..., _T], *arguments: object, **options: object) -> _T:
        """Calls a function and records its duration."""
        began = time.perf_counter()
        done = action(*arguments, **options)
        self.note(call, time.perf_counter() - began)
        return done

    def time_calls_of(self, client: Client) -> None:
        """Times each match, reserve and load of a client from now on."""
        for call in (Call.MATCH, Call.RESERVE, Call.LOAD):
            setattr(client, call.name.lower(), partial(self.timed, call, getattr(client, call.name.lower())))


class Latency(msgspec.Struct, frozen=True):
    """The durations of one kind of call, in milliseconds."""

    call: str
    count: int
    p50: float
    p99: float
    most: float


def read_times(folder: Path) -> np.ndarray:
    """Returns all records in a folder, sorted by time: `at` (CLOCK_MONOTONIC), `took` in seconds, and `call`."""
    files = [path.read_bytes() for path in folder.glob(f"*{_SUFFIX}")]
    rows = [np.frombuffer(file, _ROW, len(file) // _ROW.itemsize) for file in files]
    every = np.concatenate([np.empty(0, _ROW), *rows])
    return every[np.argsort(every["at"], kind="stable")]


def latencies(times: np.ndarray) -> list[Latency]:
    """Returns the latency of each kind of call."""
    found = []
    for call in Call:
        took = 1e3 * times["took"][times["call"] == call].astype(float)
        if len(took):
            p50, p99, most = (round(float(value), 4) for value in np.percentile(took, (50, 99, 100)))
            found.append(Latency(call.name.lower(), len(took), p50, p99, most))
    return found
