"""How long a soak is, what happens in it and how often, and what is called growth."""

from __future__ import annotations

import random
import time
from typing import Final

import msgspec

from chaos.engine import Post
from chaos.scenario import MIB, Scene
from oracle.journal import Journal
from soak.journal_rotation import Chapters

WINDOWS: Final = 12
"""In which the first and the last part are cut: what is compared are medians of so many."""

_PART_S: Final = 600.0
_PARTS: Final = 9
_LONG_S: Final = 600.0
_NEAR: Final = 8.0
_CHURN_S: Final = 0.3
_PROMPTS_A_SECOND: Final = 3.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: measured, after it is warm. part: of the beginning and the end that are compared, in seconds.

    chapter, sample, point: seconds from one to the next: chapters of journals, readings, points of a slope. skip: how
    long a new process may grow. growth: bytes of private memory that anything may gain in its life.
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
        """Seconds of one."""
        return self.part / WINDOWS

    @property
    def evens_out(self) -> bool:
        """Whether it is long enough for what comes and goes, as slots and pages being written, to have a level."""
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
        """Returns the plan with one daemon and one disk worker for all of it, and clients that come and go quickly."""
        scene = msgspec.structs.replace(self.scene, daemon_death=0.0, worker_death=0.0, engine_death=_CHURN_S)
        return msgspec.structs.replace(self, scene=scene)


def _scene(seconds: float) -> Scene:
    """More prompts than there is room for on disk, and more there than in memory: something leaves all the time."""
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


class SoakPost(Post, frozen=True, kw_only=True):
    """Where a process of a soak works: prompts come up again and again, and journals have chapters."""

    chapters: Chapters

    def pick(self, rng: random.Random) -> int:
        """Mostly one of the newest, else one of the last half: the same mixture at any time."""
        newest = int((time.monotonic() - self.began) * _PROMPTS_A_SECOND)
        is_near = rng.random() < 0.6
        back = int(rng.expovariate(1 / _NEAR)) if is_near else rng.randrange(self.scene.prompts // 2)
        return (newest - back) % self.scene.prompts

    def journal(self) -> Journal:
        """In the chapter that is open."""
        return self.chapters.journal()
