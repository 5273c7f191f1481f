"""Describes the scenes of the simulator: the sizes of the tiers, the engines, the prompts and the rates of deaths."""

from __future__ import annotations

import random
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from disk_stores import STORE_KINDS, StoreKind, settings_of
from pagetier.client import Keys
from pagetier.shm._core import SLOTS
from running_daemon import namespace
from store_servers import with_parameters

FRAME: Final = 4096
MIB: Final = 1 << 20
SMALL, LARGE = 11_008, 300_000
"""Bytes of pages: three frames each; and so large that some kills happen within a copy."""

FLEET_TIMEOUT_S: Final = 2.0
POLICIES: Final = ("lru", "cadence")

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


class SimulatedScene(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the cache and its events. Deaths and stops are mean intervals in seconds; 0: never.

    Attributes:
        name: The name in reports and for `--scene`.
        arena: The size of the arena in bytes.
        prompts: The number of different prompts.
        roomy: Nothing is ever evicted, so nothing may be lost.
        disk: The size of the disk tier in bytes; 0: none.
        devices: The number of folders that share the disk tier; drawn by the seed of the run.
        disk_write: The daemon's setting of the same name.
        fleet: The kind of store that two hosts share, "folder" or "s3"; "": one host without a fleet.
        fleet_url: The URL of that store.
        policy: evict.policy; "": drawn by the seed of the run.
        store: The store of the disk tier; None: drawn by the seed of the run.
        role: The role of engines of one process, "engine", "busy engine" or "fleet engine".
        engines: The number of engines of one process.
        rank_engines: The number of engines with ranks.
        back: The number of prompts behind the newest one from which engines choose.
        engine_death: The interval between deaths of engine processes.
        daemon_death: The interval between deaths of daemons.
        worker_death: The interval between deaths of disk workers, or of the fleet's.
        stop: The interval between stops of a process.
        steps: The number of requests in a second of the clock that deaths follow: on a busy machine that clock is
            slower, so that engines do as much between two deaths as on an idle one. 0: the clock of the wall.
        warm: The number of pages that must be written to disk before a daemon or a disk worker dies; where evictions
            happen, one page must also have been read.
        pause: The longest pause of an engine between two requests, in seconds.
        expiry: The timeout of reservations, in seconds.
        hangs: The number of seconds without progress after which a process counts as hung.
        late: The number of seconds after which a dead process's slot in use is a violation. DESIGN promises one second;
            the rest is a margin for a machine on which a hundred processes share two cores.
        spawned: Engine processes begin by exec instead of fork.
        nice: The nice value of engines; by default that of the disk worker, which gets no processor time beside busy
            engines of a higher priority.
    """

    name: str
    arena: int
    prompts: int
    roomy: bool = False
    disk: int = 0
    devices: int = 1
    disk_write: str = "evict"
    fleet: str = ""
    fleet_url: str = ""
    policy: str = ""
    store: StoreKind | None = None
    role: str = "engine"
    engines: int = 3
    rank_engines: int = 2
    back: int = 1 << 30
    engine_death: float = 0.05
    daemon_death: float = 0.4
    worker_death: float = 0.0
    stop: float = 0.8
    steps: float = 60.0
    warm: int = 0
    pause: float = 0.003
    expiry: float = 1.5
    hangs: float = 15.0
    late: float = 5.0
    spawned: bool = False
    nice: int = 10

    def flags(self, disk: Path) -> list[str]:
        """Returns the command line flags of the daemon."""
        flags = [f"--arena-size={self.arena}", f"--set=arena.frame_size={FRAME}", "--set=arena.prefault=lazy"]
        flags += [f"--constant=store.reservation_timeout={self.expiry}", f"--set=evict.policy={self.policy}"]
        flags += ["--set=evict.free=0" if self.roomy else "--set=evict.free=0.05"]
        if self.disk:
            folders = ",".join(str(disk / str(number)) for number in range(self.devices))
            flags += [f"--disk-path={folders}", f"--disk-size={self.disk // self.devices}"]
            flags += [f"--set=disk.write={self.disk_write}", *settings_of(self.store or "files")]
            flags += ["--constant=disk.environments=2", "--set=disk.stop_timeout=1ms"]
        if self.fleet_url:
            flags += [
                f"--set=remote.url={with_parameters(self.fleet_url, buffers='8MiB')}",
                f"--set=remote.timeout={FLEET_TIMEOUT_S}s",
            ]
            flags += ["--set=remote.ask_timeout=0.2s"]
        return flags

    def drawn(self, seed: int) -> SimulatedScene:
        """Returns the scene with an eviction policy, a store of the disk tier and one to three devices.

        Of three consecutive seeds, one draws another policy than the others.
        """
        policy, devices = POLICIES[seed.bit_count() % len(POLICIES)], random.Random(seed).randint(1, 3)
        store = self.store or STORE_KINDS[seed % len(STORE_KINDS)]
        return msgspec.structs.replace(self, policy=self.policy or policy, store=store, devices=devices)

    def pick(self, rng: random.Random, newest: int) -> int:
        """Returns a prompt's number: mostly one of the newest, so that several engines store the same pages at once."""
        is_near = rng.random() < 0.6
        back = min(newest, int(rng.expovariate(1 / _NEAR))) if is_near else rng.randrange(min(newest + 1, self.back))
        return (newest - back) % self.prompts


_ROOMY_DISK: Final = SimulatedScene(
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
_SPAWNED: Final = SimulatedScene(
    name="roomy, spawned",
    arena=512 * MIB,
    prompts=400,
    roomy=True,
    engine_death=2.0,  # an interpreter takes half a second to start, longer if nine of them start at once
    daemon_death=1.6,
    spawned=True,
    steps=15.0,
    hangs=60.0,  # on a busy machine an interpreter spends a long time on its start alone
)
_FLEET: Final = SimulatedScene(
    name="fleet",
    arena=24 * MIB,
    prompts=800,
    fleet="folder",
    role="fleet engine",
    engines=3,
    rank_engines=1,
    engine_death=0.15,
    daemon_death=4.0,
    worker_death=3.0,
    pause=0.01,
)
SCENES: Final = (
    SimulatedScene(name="roomy", arena=512 * MIB, prompts=1500, roomy=True),
    _SPAWNED,
    SimulatedScene(name="tight", arena=8 * MIB, prompts=1500),
    _ROOMY_DISK,
    msgspec.structs.replace(
        _ROOMY_DISK, name="tight, disk", arena=8 * MIB, roomy=False, disk=48 * MIB, disk_write="evict"
    ),
    _FLEET,
    *([msgspec.structs.replace(_FLEET, name="fleet, s3", fleet="s3")] if find_spec("obstore") else []),
)


def soak_scene(seconds: float) -> SimulatedScene:
    """Returns a scene with more prompts than fit on disk, and a disk larger than memory: pages are always evicted.

    In a short run everything is smaller and happens sooner.
    """
    is_long = seconds >= 600
    prompts = 4000 if is_long else 800
    return SimulatedScene(
        name="soak",
        arena=(32 if is_long else 8) * MIB,
        disk=(128 if is_long else 32) * MIB,
        prompts=prompts,
        back=prompts // 2,
        engine_death=2.0 if is_long else 0.7,
        stop=5.0 if is_long else 2.0,
        daemon_death=max(5.0, seconds / 6),
        worker_death=max(4.0, seconds / 6),
        steps=0,
        pause=0.1 if is_long else 0.05,
        hangs=60.0,
        late=20.0,
    )


def load_scene(engines: int = SLOTS, nice: int = 0) -> SimulatedScene:
    """Returns a scene in which that many engines store and load as fast as they can, and none is killed."""
    return SimulatedScene(
        name="load",
        arena=256 * MIB,
        prompts=1 << 16,
        role="busy engine",
        engines=engines,
        rank_engines=0,
        engine_death=0,
        daemon_death=0,
        stop=0,
        steps=0,
        expiry=60.0,
        hangs=120.0,
        late=20.0,
        nice=nice,
    )


@lru_cache(maxsize=512)
def chain_of(number: int) -> Chain:
    """Returns the prompt of this number; it shares its first pages with its neighbours.

    Every eighth has few large pages.
    """
    if number % _LARGE_EVERY == 0:
        return Chain(_SPACES[LARGE].keys(_tokens([number, number])), LARGE)
    pages = [number // _ALIKE] * _SHARED + [number] * (3 + number % 6)
    return Chain(_SPACES[SMALL].keys(_tokens(pages)), SMALL)


def _tokens(pages: list[int]) -> np.ndarray:
    at = np.arange(len(pages), dtype=np.uint32)
    return np.repeat(np.array(pages, dtype=np.uint32) + (at << 24), _PAGE_TOKENS)
