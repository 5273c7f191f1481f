"""Adversarial attached engines: `python -m adversarial.hostile_engines ACT SOCKET USER`, until it is killed.

Some use the client's calls only; others write to the lock words, which this module maps once more.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from core_records import lock_words
from eventually import PATIENCE_S, pace
from pagetier.client import Client, Keys, Match
from pagetier.client.adapters import Reservation
from pagetier.shm._core import Observer
from pagetier.shm.daemon_link import Link
from pagetier.shm.protocol import BUILD, Attach
from running_daemon import namespace

PAGE: Final = 64 << 10
PAGES: Final = 64


@cache
def begun() -> None:
    """Reports once that the attack runs."""
    os.write(1, b"begun\n")


def prompts() -> Iterator[Keys]:
    """Yields prompts without end."""
    number = 0
    while True:
        yield namespace(salt=f"hostile {os.getpid()}").keys(range(number, number + 16 * PAGES))
        number += 1


def attached(path: Path) -> Client:
    """Returns an attached client."""
    client = Client(path, name="hostile", timeout=5.0)
    assert client.wait_attached(PATIENCE_S)
    return client


def reserves(path: Path) -> None:
    """Reserves as much as possible, writes nothing, and continues to reserve."""
    client, kept = attached(path), list[Reservation]()
    for keys in prompts():
        reservation = client.reserve(keys, PAGE)
        if len(reservation.granted):
            kept.append(reservation)
        elif kept:
            begun()


def pins(path: Path) -> None:
    """Stores as much as possible, and keeps every page pinned."""
    client, kept = attached(path), list[Match]()
    for number, keys in enumerate(prompts()):
        client.store(keys, [bytes(PAGE)] * PAGES)
        kept.append(client.match(keys))
        if number == 40:
            begun()


def gives_up(path: Path) -> None:
    """Reserves and abandons pages as fast as possible."""
    client = attached(path)
    for number, keys in enumerate(prompts()):
        with client.reserve(keys, PAGE):
            pass
        if number == 40:
            begun()


def mapped_words(path: Path) -> tuple[npt.NDArray[np.void], int]:
    """Returns the lock words, by entry and writable, and the slot."""
    link = Link(path, PATIENCE_S)
    greeting = link.greet(Attach(BUILD, 13, "scribbler"), PATIENCE_S)
    _KEPT.append(link)
    index, locks, arena = greeting.descriptors
    entries = Observer(index, locks).header().entries
    segment = mmap.mmap(locks, 0)
    for descriptor in (index, locks, arena):
        os.close(descriptor)
    return lock_words(segment, entries), greeting.welcome.slot


_KEPT: list[Link] = []


def pin_all(path: Path) -> None:
    """Sets its own bit in every lock word, again and again."""
    words, slot = mapped_words(path)
    pins: npt.NDArray[np.uint64] = words["word"]
    while True:
        pins |= np.uint64(1 << slot)
        begun()
        pace(0.0005)


def scribbles(path: Path) -> None:
    """Writes random values to lock words, parts, ticks and seals of all entries."""
    words, _ = mapped_words(path)
    names = words.dtype.names or ()
    random = np.random.default_rng(8)
    while True:
        for entry, name in zip(random.integers(0, len(words), 50), random.choice(names, 50), strict=True):
            words[name][entry] = random.integers(0, 1 << 64, dtype=np.uint64, endpoint=False)
        begun()
        pace(0.001)


ACTS: Final[dict[str, Callable[[Path], None]]] = {
    "reserves": reserves,
    "pins": pins,
    "gives_up": gives_up,
    "pin_all": pin_all,
    "scribbles": scribbles,
}


def main() -> None:
    """Runs the attack until it is killed."""
    act, path, _ = sys.argv[1:]
    ACTS[act](Path(path))


if __name__ == "__main__":
    main()
