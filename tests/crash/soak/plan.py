"""Plans a soak: its duration, the rates of its events, and the limits of growth."""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

from chaos.engine import EngineContext
from chaos.scenario import MIB, Scene
from oracle.journal import Journal
from soak.journal_rotation import Chapters

WINDOWS: Final = 12
"""The number of windows in the first and the last part, whose medians are compared."""

_PART_S: Final = 600.0
_PARTS: Final = 9
_LONG_S: Final = 600.0
_NEAR: Final = 8.0
_CHURN_S: Final = 0.3
_PROMPTS_A_SECOND: Final = 3.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a soak.

    Attributes:
        seconds: The duration of the measurement, after the warm-up.
        seed: The seed of the planned deaths.
        scene: The configuration of the cache and its events.
        part: The seconds at the beginning and at the end that are compared.
        chapter: The interval between chapters of journals, in seconds.
        sample: The interval between readings.
        point: The interval between points of a slope.
        skip: The seconds during which a new process may grow.
        warm: The longest duration of the warm-up, in seconds.
        growth: The bytes of private memory that a process may gain in its life.
    """

    seconds: float
    seed: int
    scene: Scene
    part: float
    chapter: float
    sample: float
    point: float
    skip: float
    warm: float
    growth: int

    @property
    def window(self) -> float:
        """The seconds of a window."""
        return self.part / WINDOWS

    @property
    def evens_out(self) -> bool:
        """Whether the run is long enough for values that vary, as the number of slots and of pages being written."""
        return self.seconds >= _LONG_S

    @classmethod
    def of(cls, seconds: float, seed: int) -> Plan:
        """Returns the plan of a soak of that length; in a short one everything happens sooner."""
        is_long = seconds >= _LONG_S
        return cls(
            seconds=seconds,
            seed=seed,
            scene=_scene(seconds),
            part=min(_PART_S, seconds / _PARTS),
            chapter=60.0 if is_long else 6.0,
            sample=1.0 if is_long else 0.25,
            point=max(0.5, min(60.0, seconds / 90)),
            skip=min(300.0, seconds / 12),
            warm=max(8.0, min(600.0, seconds / 4)),
            growth=(2 if is_long else 8) * MIB,
        )

    def churning(self) -> Plan:
        """Returns the plan with one daemon and one disk worker only, and clients that attach and detach often."""
        scene = msgspec.structs.replace(self.scene, daemon_death=0.0, worker_death=0.0, engine_death=_CHURN_S)
        return msgspec.structs.replace(self, scene=scene)


def _scene(seconds: float) -> Scene:
    """Returns a scene with more prompts than fit on disk, and a disk larger than memory: pages are always evicted."""
    is_long = seconds >= _LONG_S
    return Scene(
        name="soak",
        arena=(32 if is_long else 8) * MIB,
        disk=(128 if is_long else 32) * MIB,
        prompts=4000 if is_long else 800,
        roomy=False,
        engine_death=2.0 if is_long else 0.7,
        stop=5.0 if is_long else 2.0,
        daemon_death=max(5.0, seconds / 6),
        worker_death=max(4.0, seconds / 6),
        pause=0.1 if is_long else 0.05,
        hangs=60.0,
        late=20.0,
    )


class SoakContext(EngineContext, frozen=True, kw_only=True):
    """The context of a process of a soak: prompts repeat, and journals have chapters."""

    chapters: Chapters

    def pick(self, rng: random.Random) -> int:
        """Returns mostly one of the newest prompts, otherwise one of the last half: the same mixture at any time."""
        newest = int((time.monotonic() - self.began) * _PROMPTS_A_SECOND)
        is_near = rng.random() < 0.6
        back = int(rng.expovariate(1 / _NEAR)) if is_near else rng.randrange(self.scene.prompts // 2)
        return (newest - back) % self.scene.prompts

    def journal(self) -> Journal:
        """Returns a journal that writes to the current chapter."""
        return self.chapters.journal()
