"""Forks engines that store, hold and compare pages until they are killed. Their clients attach to every next daemon.

As a program it obeys lines: `breed N` forks engines, `kill N` kills some of them at any point of their work; it answers
with the number that live. `compared N` and `pages N` answer how many engines, the dead included, have compared pages,
and how many pages. An engine that finds another byte, or fails otherwise, writes what it found into a folder.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from eventually import pace
from in_namespaces import within
from keyed_pages import PAGE, assert_exact, prompt, store
from pagetier.client import Client, Keys, Match

_HELD = 2
_TIMEOUT_S = 1.0
_PROMPTS = 1 << 11  # so many that engines find pages of each other, and that not all fit
_PAUSE_S = 0.2  # at most, so that a machine carries many engines
_ANOTHER = 16  # in one of so many rounds another session of the process comes and goes
_MOST = 1 << 15  # of engines in the life of a herd
_Counts = npt.NDArray[np.int64]


def live(socket: Path, compared: _Counts, chance: random.Random) -> NoReturn:
    """Is one engine, which adds the pages that it compares to its count."""
    held = list[tuple[Keys, Match]]()
    client = Client(socket, timeout=_TIMEOUT_S)
    while True:
        keys = prompt(chance.randrange(_PROMPTS), pages=2)
        store(client, keys, timeout=_TIMEOUT_S)
        held.append((keys, client.match(keys)))
        for one in held:
            compared += _compare(client, *one)
        if len(held) > _HELD:  # the first ones are held for life
            held.pop()[1].release()
        if not chance.randrange(_ANOTHER):
            with closing(Client(socket, timeout=_TIMEOUT_S)) as another:
                store(another, keys, timeout=_TIMEOUT_S)
        pace(chance.uniform(0, _PAUSE_S))


def _compare(client: Client, keys: Keys, match: Match) -> int:
    out = np.zeros((len(keys), PAGE), np.uint8)
    loaded = client.load(match, out, timeout=_TIMEOUT_S)
    assert_exact(keys, out[:loaded])
    return loaded


class _Engines:
    """The engines that one process forks."""

    def __init__(self, socket: Path, reports: Path) -> None:
        self._socket, self._reports = socket, reports
        self._chance, self._living, self._born = random.Random(), list[int](), 0
        self._compared: _Counts = np.frombuffer(mmap.mmap(-1, 8 * _MOST), np.int64)

    def do(self, verb: str, number: int) -> int:
        """Obeys one line and returns the answer."""
        if verb == "compared":
            return int(np.count_nonzero(self._compared))
        if verb == "pages":
            return int(self._compared.sum())
        for _ in range(number):
            if verb == "breed":
                self._breed()
            elif self._living:
                self._kill()
        return len(self._living)

    def _breed(self) -> None:
        """Forks an engine."""
        seed, compared = self._chance.getrandbits(32), self._compared[self._born : self._born + 1]
        self._born += 1
        child = os.fork()
        if not child:
            try:
                live(self._socket, compared, random.Random(seed))
            except BaseException:  # noqa: BLE001  whatever it is, the test says so
                (self._reports / f"{os.getpid()}-{seed}").write_text(traceback.format_exc())
            os._exit(1)
        self._living.append(child)

    def _kill(self) -> None:
        """Kills an engine at any point of its work."""
        child = self._living.pop(self._chance.randrange(len(self._living)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Herd:
    """The engines of one place, run by a test."""

    def __init__(self, socket: Path, reports: Path, *what: str) -> None:
        command = [*within(*what), sys.executable, __file__, str(socket), str(reports)]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def do(self, verb: str, number: int) -> int:
        """Breeds, kills or counts engines, and returns the answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{verb} {number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """Kills all engines."""
        self._process.communicate("kill 1000\n")


def main(lines: Iterable[str], socket: Path, reports: Path) -> None:
    """Obeys lines until there are no more."""
    engines = _Engines(socket, reports)
    for line in lines:
        verb, number = line.split()
        sys.stdout.write(f"{engines.do(verb, int(number))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(iter(sys.stdin.readline, ""), Path(sys.argv[1]), Path(sys.argv[2]))
