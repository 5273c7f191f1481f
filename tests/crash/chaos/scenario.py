"""Where a round takes place: how much room there is, which prompts there are, and how often somebody dies."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from pagetier.client import Keys
from running_daemon import namespace

FRAME: Final = 4096
EXPIRY_S: Final = 1.5
SMALL, LARGE = 11_008, 300_000
"""Bytes of pages: three frames each; and so large that somebody is killed within a copy now and then."""

_PAGE_TOKENS: Final = 4
_SHARED: Final = 3
_ALIKE: Final = 16
_LARGE_EVERY: Final = 8
_NEAR: Final = 8.0
_SPACES: Final = {SMALL: namespace(_PAGE_TOKENS, salt="small"), LARGE: namespace(_PAGE_TOKENS, salt="large")}


class Chain(msgspec.Struct, frozen=True):
    """The pages of a prompt."""

    keys: Keys
    page_bytes: int


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of cache, and what happens to it. Deaths and stops are means, in seconds from one to the next.

    prompts: as many different ones come up in the course of a round. roomy: nothing is ever evicted, so nothing may be
    lost. disk: bytes, 0: none. warm: no daemon and no disk worker dies before so many pages were written to disk, and
    one was read where that can be. pause: of engines, in seconds between two requests at most. spawned: engines'
    processes begin by exec, not by fork.
    expiry: of reservations, in seconds. hangs: a process that did nothing for so many seconds hangs. late: a slot of
    the dead that is taken for so many is a violation: DESIGN says one, the rest is what a machine may take on which a
    hundred processes want two cores.
    """

    name: str
    arena: int
    prompts: int
    roomy: bool
    disk: int = 0
    disk_write: str = "evict"
    engine_death: float = 0.05
    daemon_death: float = 0.4
    worker_death: float = 0.0
    stop: float = 0.8
    warm: int = 0
    pause: float = 0.003
    expiry: float = EXPIRY_S
    hangs: float = 15.0
    late: float = 5.0
    spawned: bool = False

    def flags(self, disk: Path) -> list[str]:
        """Of the daemon."""
        flags = [f"--arena-size={self.arena}", f"--arena-frame-size={FRAME}", "--arena-prefault=lazy"]
        flags += [f"--store-expiry={self.expiry}s"]
        flags += ["--evict-low=0", "--evict-high=0"] if self.roomy else ["--evict-low=0.02", "--evict-high=0.05"]
        if self.disk:
            flags += [f"--disk-path={disk}", f"--disk-size={self.disk}", f"--disk-write={self.disk_write}"]
            flags += ["--disk-environments=2", "--disk-stop=1ms"]
        return flags


MIB: Final = 1 << 20
_ROOMY_DISK: Final = Scene(
    name="roomy, disk",
    arena=512 * MIB,
    prompts=800,
    roomy=True,
    disk=1024 * MIB,
    disk_write="through",
    daemon_death=1.6,
    worker_death=2.5,
    warm=200,
    pause=0.02,
)
_SPAWNED: Final = Scene(
    name="roomy, spawned",
    arena=512 * MIB,
    prompts=400,
    roomy=True,
    engine_death=2.0,  # an interpreter is there after half a second, and after some where nine of them start
    daemon_death=1.6,
    spawned=True,
    hangs=60.0,  # an interpreter that starts on a busy machine does nothing else for long
)
SCENES: Final = (
    Scene(name="roomy", arena=512 * MIB, prompts=1500, roomy=True),
    _SPAWNED,
    Scene(name="tight", arena=8 * MIB, prompts=1500, roomy=False),
    _ROOMY_DISK,
    msgspec.structs.replace(
        _ROOMY_DISK, name="tight, disk", arena=8 * MIB, roomy=False, disk=48 * MIB, disk_write="evict"
    ),
)


@lru_cache(maxsize=512)
def chain_of(number: int) -> Chain:
    """The prompt of this number; it begins as its neighbours do. Every eighth has few large pages."""
    if number % _LARGE_EVERY == 0:
        return Chain(_SPACES[LARGE].keys(_tokens([number, number])), LARGE)
    pages = [number // _ALIKE] * _SHARED + [number] * (3 + number % 6)
    return Chain(_SPACES[SMALL].keys(_tokens(pages)), SMALL)


def pick(rng: random.Random, scene: Scene, progress: float) -> int:
    """A prompt's number: mostly one of the newest, so that several engines want to store the same at once."""
    newest = int(progress * (scene.prompts - 1))
    if rng.random() < 0.6:
        return max(0, newest - int(rng.expovariate(1 / _NEAR)))
    return rng.randrange(newest + 1)


def _tokens(pages: list[int]) -> np.ndarray:
    at = np.arange(len(pages), dtype=np.uint32)
    return np.repeat(np.array(pages, dtype=np.uint32) + (at << 24), _PAGE_TOKENS)
