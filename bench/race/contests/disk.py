"""Pages of 8 MiB to disk and back, over O_DIRECT on the same file system.

A write ends when the pages are on disk and synced, memory included on the way. A cold read finds nothing in memory and
in the kernel's page cache, a warm one nothing in memory; "mixed" writes as much as it reads at the same time. Every
value is the time of O_DIRECT with blocks of 4 MiB (four threads for reads) in the same round over the system's time.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from measure import time_of
from race.contestants.cache import Sizes, drop_page_cache
from race.contestants.registry import FILES, LMCACHE, NATIVE, PAGETIER
from race.engine_process import Answer, Served
from race.results import Form, Line
from race.rounds import RoundError, Team, Values, each, run_rounds, teams
from raw_device import read_direct, write_direct

MIB = 1 << 20
PAGE, PAGE_TOKENS = 8 * MIB, 256
PAGES = {Form.QUICK: 16, Form.WHOLE: 48}
ROUNDS = {Form.QUICK: 3, Form.WHOLE: 11}
_UNITS = {"": ("x O_DIRECT", "high")}
_PROMPTS = itertools.count(1)


def measure(form: Form, folder: Path) -> Iterator[Line]:
    """Yields the figures of all cases."""
    pages, running = PAGES[form], dict[str, Team]()
    total = pages * PAGE
    sizes = Sizes(4 * total, PAGE, PAGE_TOKENS, disk=3 * (ROUNDS[form] + 1) * total)
    content = mmap.mmap(-1, 64 * MIB)
    content.write(np.random.default_rng(1).bytes(len(content)))
    with ExitStack() as stack:
        for one in teams("disk", (PAGETIER, LMCACHE, NATIVE, FILES), sizes, 2, folder, stack):
            if isinstance(one, tuple):
                running[one[0]] = one[1]
            else:
                yield one
        device = Device(folder / "bare", content, total)
        yield from run_rounds("disk", running, ROUNDS[form], functools.partial(_play, pages, device), _UNITS)


class Device:
    """The file system without any of the systems.

    Args:
        path: A file for it.
        content: What it writes.
        total: Bytes of a write and of a read.
    """

    def __init__(self, path: Path, content: mmap.mmap, total: int) -> None:
        self._path, self._content, self._total = path, content, total

    def write(self) -> float:
        """Returns the seconds of writing and syncing a new file."""
        self._path.unlink(missing_ok=True)
        return time_of(lambda: write_direct(self._path, self._content, self._total))

    def read(self) -> float:
        """Returns the seconds of reading it with four threads."""
        return time_of(lambda: read_direct(self._path, self._total, 4))


def _play(pages: int, device: Device, team: Team, number: int) -> Values:
    prompt, values = next(_PROMPTS), Values()
    writer, reader = team.engines
    bare_write = device.write()
    began = time.perf_counter()
    (stored,) = each([writer], "store", [(prompt, pages)])
    values["write"] = bare_write / (_synced(team, 2 * number + 1, stored, pages) - began)
    values["cold read"] = _read(team, prompt, pages, device.read, lambda: drop_page_cache(team.cache.disk_files()))
    values["warm read"] = _read(team, prompt, pages, device.read, lambda: None)
    _forget(team, lambda: drop_page_cache(team.cache.disk_files()))
    bare = device.write() + device.read()
    began = time.perf_counter()
    writer.send("store", next(_PROMPTS), pages)
    reader.send("load", prompt, pages)
    loaded, stored = reader.receive(), writer.receive()
    _require_loaded(loaded, pages)
    values["mixed"] = bare / (_synced(team, 2 * number + 2, stored, pages) - began)
    return values


def _synced(team: Team, prompts: int, stored: Answer, pages: int) -> float:
    """Returns the time at which all prompts of all rounds are on disk."""
    if stored.error or stored.value != pages:
        raise RoundError(f"{stored.error or stored.value} of {pages} pages were stored")
    team.cache.sync(prompts * pages)
    return time.perf_counter()


def _read(team: Team, prompt: int, pages: int, bare: Callable[[], float], drop: Callable[[], None]) -> float:
    _forget(team, drop)
    seconds = bare()
    (loaded,) = each([team.engines[1]], "load", [(prompt, pages)])
    _require_loaded(loaded, pages)
    return seconds / loaded.seconds


def _forget(team: Team, drop: Callable[[], None]) -> None:
    if not team.cache.drop_memory():
        raise RoundError("it cannot be asked to drop its memory")
    drop()


def _require_loaded(answer: Answer, pages: int) -> None:
    if answer.value != Served(right=pages):
        raise RoundError(f"loaded {answer.value}: {answer.error}")
