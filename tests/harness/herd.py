"""Forks engines that store, hold and compare pages until they are killed. Their clients attach to every next daemon.

As a program it obeys lines: `breed N` forks engines, `kill N` kills some of them at any point of their work. It answers
with the number that live. An engine writes a file named after its PID into a folder: "exact" once it has compared
pages, and at the first other byte what it found.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np

from in_namespaces import within
from keyed_pages import PAGE, assert_exact, prompt, store
from pagetier.client import Client, Keys, Match

_HELD = 2
_TIMEOUT_S = 1.0
_PROMPTS = 1 << 11  # so many that engines find pages of each other, and that not all fit


def live(socket: Path, report: Path, chance: random.Random) -> NoReturn:
    """Is one engine."""
    held = list[tuple[Keys, Match]]()
    client = Client(socket, timeout=_TIMEOUT_S)
    while True:
        keys = prompt(chance.randrange(_PROMPTS), pages=2)
        store(client, keys, timeout=_TIMEOUT_S)
        held.append((keys, client.match(keys)))
        compared = sum(_compare(client, *one) for one in held)
        if compared and not report.exists():
            report.write_text("exact")
        if len(held) > _HELD:  # the first ones are held for life
            held.pop()[1].release()


def _compare(client: Client, keys: Keys, match: Match) -> int:
    out = np.zeros((len(keys), PAGE), np.uint8)
    loaded = client.load(match, out, timeout=_TIMEOUT_S)
    assert_exact(keys, out[:loaded])
    return loaded


def breed(socket: Path, reports: Path, chance: random.Random) -> int:
    """Forks an engine and returns its PID."""
    seed = chance.getrandbits(32)
    child = os.fork()
    if not child:
        report = reports / f"{os.getpid()}-{seed}"
        try:
            live(socket, report, random.Random(seed))
        except BaseException:  # noqa: BLE001  whatever it is, the test says so
            report.write_text(traceback.format_exc())
        os._exit(1)
    return child


class Herd:
    """The engines of one place, run by a test."""

    def __init__(self, socket: Path, reports: Path, *what: str) -> None:
        command = [*within(*what), sys.executable, __file__, str(socket), str(reports)]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ)

    def do(self, verb: str, number: int) -> int:
        """Breeds or kills engines, and returns how many live then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{verb} {number}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """Kills all engines."""
        self._process.communicate("kill 1000\n")


def main(lines: Iterable[str], socket: Path, reports: Path) -> None:
    """Obeys lines until there are no more."""
    chance, living = random.Random(), list[int]()
    for line in lines:
        verb, number = line.split()
        for _ in range(int(number)):
            if verb == "breed":
                living.append(breed(socket, reports, chance))
            elif living:
                child = living.pop(chance.randrange(len(living)))
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        sys.stdout.write(f"{len(living)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(iter(sys.stdin.readline, ""), Path(sys.argv[1]), Path(sys.argv[2]))
