"""An index whose eviction policy learns when pages return, and a process that uses it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from hashlib import sha256

import numpy as np

from anonymous_segments import DAY_NS, Memory, attach
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, HintKind, Owner, Pins, ReserveOutcome, Session
from pagetier.shm.geometry import Geometry

FRAME = 4096
_TICK_BITS = 20
LEARNING = 2000  # stores of one page after which the policy has learned, with at most 1,024 frames


class PromptKind(Enum):
    """How the pages of a store depend on each other: not known, each on those before it, or not at all."""

    UNKNOWN = 0
    KNOWN = 1
    NONE = 2


class LearningIndex:
    """An index whose policy learns, and a process that matches and stores prompts. A page is named by its prefix."""

    def __init__(self, frames: int, *, learns: bool = True) -> None:
        self.memory = Memory(Geometry(FRAME, frames, frames, 2))
        self.owner: Owner = self.memory.adopted()
        if learns:
            self.owner.learn_returns()
        self.slot = attach(self.owner, 1)
        self.session: Session = self.memory.session(self.slot)

    @staticmethod
    def next_tick() -> None:
        """Returns when the time by which the policy learns has another value."""
        tick = time.monotonic_ns() >> _TICK_BITS
        while time.monotonic_ns() >> _TICK_BITS == tick:
            pass

    def keys(self, prompt: Sequence[int]) -> list[bytes]:
        return [sha256(repr(tuple(prompt[: end + 1])).encode()).digest() for end in range(len(prompt))]

    def use(self, prompt: Sequence[int], hint: HintKind = HintKind.NONE, kind: PromptKind = PromptKind.KNOWN) -> int:
        """Matches a prompt and stores what is missing. Returns the number of pages that hit."""
        keys = self.keys(prompt)
        with self.session.match(Pins, None, b"".join(keys)) as pins:
            hits = len(pins)
            self.store(keys[hits:], keys[hits - 1] if hits else b"", kind, hint=hint)
        return hits

    def store(
        self,
        keys: Sequence[bytes],
        parent: bytes,
        kind: PromptKind = PromptKind.KNOWN,
        part: int = 0,
        hint: HintKind = HintKind.NONE,
        size: int = FRAME,
    ) -> bytes:
        """Stores pages and returns their outcomes."""
        prompts = {PromptKind.UNKNOWN: None, PromptKind.NONE: (), PromptKind.KNOWN: ((0, parent, -1),)}[kind]
        space = self.owner.space(bytes(KEY_BYTES), "test", 16, 0, 0)
        sizes = np.full(len(keys), size, np.uint64).tobytes()
        outcomes, entries, serials = reserve(
            self.owner, self.slot, space, part, 1, DAY_NS, b"".join(keys), sizes, prompts, hint, DAY_NS
        )
        granted = np.frombuffer(outcomes, np.uint8) == ReserveOutcome.GRANTED
        chosen = np.frombuffer(entries, np.uint32)[granted], np.frombuffer(serials, np.uint64)[granted]
        assert self.session.publish(chosen[0].tobytes(), chosen[1].tobytes(), 0) == b"\1" * int(granted.sum())
        self.owner.settle()
        return outcomes

    def has(self, prompt: Sequence[int]) -> list[bool]:
        """Returns which pages of a prompt are in memory, also beyond a gap."""
        found = []
        for key in self.keys(prompt):
            with self.session.match(Pins, None, key) as pins:
                found.append(bool(len(pins)))
        return found

    def check(self) -> None:
        assert self.owner.check_integrity() == []


def learn(engine: LearningIndex, seed: int = 0) -> None:
    """Lets prompts of one page pass through, until the policy has learned."""
    for number in range(LEARNING):
        engine.use([-1 - seed * LEARNING - number])
