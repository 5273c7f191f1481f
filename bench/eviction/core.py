"""The policies in C: the daemon's own index, those of the literature, and the optimum."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from eviction.traces import Trace
from pagetier.shm._core import Absence

SOURCES: Final = Path(__file__).parent
ROOT: Final = SOURCES.parents[1]
CACHE: Final = ROOT / ".cache" / "eviction"
IN_INDEX: Final = {"lru": 0, "cadence": 1}
ON_LISTS: Final = ("arc", "s3fifo")


class TraceRecord(ctypes.Structure):
    """A trace; see eviction/small_index.h."""

    _fields_ = [
        ("starts", ctypes.c_void_p),
        ("pages", ctypes.c_void_p),
        ("seconds", ctypes.c_void_p),
        ("hints", ctypes.c_void_p),
        ("requests", ctypes.c_int64),
    ]


def record_of(trace: Trace) -> TraceRecord:
    """Returns a trace in the form that the replays take. The trace must live as long."""
    hints = None if trace.hints is None else trace.hints.ctypes.data
    arrays = (array.ctypes.data for array in (trace.starts, trace.pages, trace.seconds))
    return TraceRecord(*arrays, hints, len(trace.seconds))


class Outcome(ctypes.Structure):
    """What a replay counted; see eviction/small_index.h."""

    _fields_ = [
        ("hits", ctypes.c_int64),
        ("stored", ctypes.c_int64),
        ("left_out", ctypes.c_int64),
        ("followed", ctypes.c_int64),
        ("hits_in_memory", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("findings", ctypes.c_int64),
        ("store_seconds", ctypes.c_double),
    ]


class CacheRecord(ctypes.Structure):
    """A cache; see eviction/index_replay.c."""

    _fields_ = [
        ("pages", ctypes.c_uint32),
        ("disk_pages", ctypes.c_uint32),
        ("learns", ctypes.c_int32),
        ("speed", ctypes.c_double),
        ("seed", ctypes.c_uint64),
    ]


class Cache(msgspec.Struct, frozen=True):
    """Memory and disk that a trace is replayed through.

    Attributes:
        room: The pages that memory has room for.
        disk: The pages that the disk has room for; 0: no disk.
        speed: How many times as fast the clock runs.
        seed: Decides which pages are drawn.
    """

    room: int
    disk: int = 0
    speed: float = 1.0
    seed: int = 1


class Curve(ctypes.Structure):
    """What a daemon knows after a replay; see eviction/curve.c."""

    _fields_ = [
        ("share", ctypes.c_double),
        ("endless", ctypes.c_double),
        ("absent", ctypes.c_double * len(Absence)),
        ("record_seconds", ctypes.c_double),
        ("store_seconds", ctypes.c_double),
        ("hits", ctypes.c_int64),
        ("findings", ctypes.c_int64),
    ]


def compiled_core() -> ctypes.CDLL:
    """Returns the library of the index and the optimum, which is compiled after a change of its sources."""
    sources = sorted(SOURCES.glob("*.c"))
    files = [*sources, *sorted(SOURCES.glob("*.h")), *sorted((ROOT / "shm").rglob("*.h"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    library = CACHE / f"{digest}.so"
    if not library.exists():
        _compile(sources, library)
    core = ctypes.CDLL(str(library))
    for on_lists in ("optimum", *ON_LISTS):
        getattr(core, on_lists).restype = ctypes.c_int64
        getattr(core, on_lists).argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_int32,
            ctypes.c_int64,
        ]
    core.replay.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    core.predict.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int),
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p),
    ]
    return core


def _compile(sources: list[Path], library: Path) -> None:
    """Compiles the library, which gets its name last: other processes may look for it."""
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(f".{os.getpid()}")
    flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'shm'}"]
    subprocess.run(["cc", *flags, *map(str, sources), "-o", str(partial), "-lm"], check=True)
    partial.rename(library)


def predict(
    core: ctypes.CDLL, trace: Trace, room: int, policy: str, sizes: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], Curve]:
    """Replays a trace through an index with room for `room` pages that evicts by a policy.

    Returns:
        The ratios predicted for LRU of these sizes, and what else the daemon knows.

    Raises:
        MemoryError: There is not enough memory.
        AssertionError: The index is damaged afterwards.
    """
    given, out, ratios = record_of(trace), Curve(), np.zeros(len(sizes))
    learns = IN_INDEX[policy]
    if core.predict(
        ctypes.byref(given), room, learns, sizes.ctypes.data, len(sizes), ratios.ctypes.data, ctypes.byref(out)
    ):
        raise MemoryError
    if out.findings:
        raise AssertionError(f"the index has {out.findings} findings after the replay")
    return ratios, out


def hits_of(core: ctypes.CDLL, policy: str, trace: Trace, room: int) -> int:
    """Returns the pages that one of ON_LISTS, or "optimum", hits with room for `room` pages."""
    requests = len(trace.seconds)
    return int(getattr(core, policy)(trace.starts.ctypes.data, trace.pages.ctypes.data, requests, trace.distinct, room))


def replay(core: ctypes.CDLL, trace: Trace, cache: Cache, policy: str) -> Outcome:
    """Replays a trace through an index.

    Raises:
        MemoryError: There is not enough memory.
        AssertionError: The index is damaged afterwards.
    """
    given, out = record_of(trace), Outcome()
    wanted = CacheRecord(cache.room, cache.disk, IN_INDEX[policy], cache.speed, cache.seed)
    if core.replay(ctypes.byref(given), ctypes.byref(wanted), ctypes.byref(out)):
        raise MemoryError
    if out.findings:
        raise AssertionError(f"the index has {out.findings} findings after the replay")
    return out
