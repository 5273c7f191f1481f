"""What was observed when something failed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from race.contestants.cache import Cache, Sizes
from race.engine_process import Answer, EngineProcess, Served

PAGES = 16
"""Pages of each prompt."""
MIB = 1 << 20
PAGE, PAGE_TOKENS = MIB, 256


class Timeouts(msgspec.Struct, frozen=True):
    """How long the race waits, in seconds.

    Attributes:
        call: For an answer to one call.
        recovery: For a system to notice a failure and to recover from it.
    """

    call: float
    recovery: float


class Call(msgspec.Struct, frozen=True):
    """One call of an engine, its seconds, and the pages that it found, stored or loaded with the right bytes."""

    name: str
    seconds: float
    pages: int


class Observation(msgspec.Struct):
    """The facts about one system and one failure.

    Attributes:
        failure: The failure.
        system: The system.
        version: Its version.
        served: What engines were served afterwards, in pages.
        errors: Exceptions that an engine got.
        waited: The longest call of an engine, in seconds.
        unanswered: Calls that had no answer when the race stopped waiting.
        leak: What stayed behind; "" if nothing was seen.
        facts: What else was seen, in sentences.
        calls: Calls that the report compares one by one.
        applies: False if the system has no such part.
    """

    failure: str
    system: str
    version: str
    served: Served = Served()
    errors: list[str] = msgspec.field(default_factory=list)
    waited: float = 0.0
    unanswered: int = 0
    leak: str = ""
    facts: list[str] = msgspec.field(default_factory=list)
    calls: list[Call] = msgspec.field(default_factory=list)
    applies: bool = True

    def record(self, answer: Answer) -> Answer:
        """Records how an engine's call ended."""
        self.waited = max(self.waited, answer.seconds)
        self.unanswered += not answer.answered
        if answer.error and answer.error not in self.errors:
            self.errors.append(answer.error)
        return answer

    def loaded(self, answer: Answer, pages: int = PAGES) -> Served:
        """Records what a load was served; an error or no answer is as good as a miss."""
        self.record(answer)
        served = answer.value if isinstance(answer.value, Served) else Served(missed=pages)
        self.served = self.served + served
        return served


MakeCache = Callable[[Sizes, Path], AbstractContextManager[Cache]]
"""Makes a contestant with its folders under a path."""


class Scene(msgspec.Struct):
    """One system, for one failure.

    Attributes:
        make: Makes the system.
        folder: Where it may make folders on disk.
        timeouts: How long the race waits.
    """

    make: MakeCache
    folder: Path
    timeouts: Timeouts

    def sizes(self, disk: int = 0, memory: int = 256 * MIB) -> Sizes:
        """Returns the sizes that every system gets."""
        return Sizes(memory, PAGE, PAGE_TOKENS, disk)

    def engine(self, cache: Cache, sizes: Sizes, user: int | None = None) -> EngineProcess:
        """Starts an engine.

        Raises:
            RuntimeError: It cannot use the cache, although it is of the same user.
        """
        engine = EngineProcess(cache.opener(), sizes, user)
        if user is None and (engine.opened.error or not engine.opened.answered):
            raise RuntimeError(f"an engine cannot open {cache.name}: {engine.opened.error or 'no answer'}")
        return engine


def seconds_until(ready: Callable[[], bool], timeout: float) -> float | None:
    """Returns after how many seconds `ready` returns true; None if it does not in time."""
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if ready():
            return time.monotonic() - began
        time.sleep(0.25)
    return None
