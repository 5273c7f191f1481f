"""The expected content of the index as plain dictionaries, for test_index_model.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np

FRAME = 4096


class State(Enum):
    WRITING = "writing"
    STORED = "stored"
    DOOMED = "doomed"


class Hand(Enum):
    """The state of a part's writer."""

    WRITES = "writes"
    DONE = "done"
    GAVE_UP = "gave up"


@dataclass(eq=False)
class Page:
    key: int
    space: bytes
    entry: int
    serial: int
    size: int
    parts: int
    late: bool
    tick: tuple[int, int]
    state: State = State.WRITING
    settled: bool = False
    hands: dict[int, Hand] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)  # the slots of the parts' writers, while they are attached
    ended: set[int] = field(default_factory=set)  # parts whose writer has died or detached

    @property
    def frames(self) -> int:
        return -(-self.size // FRAME)

    @cached_property
    def content(self) -> bytes:
        return np.random.default_rng(self.serial).bytes(self.size)

    def share(self, part: int) -> slice:
        return slice(self.size * part // self.parts, self.size * (part + 1) // self.parts)

    def let_go(self) -> bool:
        return Hand.WRITES not in self.hands.values()


class Model:
    """Pages by key, and the doomed pages whose frames are still in use. Changes only as the contract allows."""

    def __init__(self, frames: int, entries: int) -> None:
        self.frames = frames
        self.entries = entries
        self.by_key: dict[int, Page] = {}
        self.doomed: list[Page] = []
        self.blurred: set[int] = set()
        self.now = 0

    @property
    def free_frames(self) -> int:
        return self.frames - sum(page.frames for page in self.all())

    @property
    def free_entries(self) -> int:
        return self.entries - len(self.by_key) - len(self.doomed)

    def all(self) -> list[Page]:
        return [*self.by_key.values(), *self.doomed]

    def open(self) -> int:
        return sum(not page.settled for page in self.all())

    def stored(self) -> list[Page]:
        return [page for page in self.by_key.values() if page.state is State.STORED]

    def in_space(self, space: bytes) -> list[Page]:
        return [page for page in self.by_key.values() if page.space == space]

    def prefix(self, keys: Iterable[int]) -> list[Page]:
        found = []
        for key in keys:
            page = self.by_key.get(key)
            if page is None or page.state is not State.STORED:
                break
            found.append(page)
        return found

    def stamp(self, page: Page, now: int, from_tail: int) -> None:
        """Records a use. One that is before the last, of a page that a call names twice, may not change the order."""
        fell, page.tick = page.tick > (now, from_tail), (now, from_tail)
        (self.blurred.add if fell else self.blurred.discard)(page.serial)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def finish(self, page: Page, part: int) -> bool:
        """Returns True if the part counts, that is, the page is not doomed."""
        page.hands[part] = Hand.DONE
        done = [hand for hand in page.hands.values() if hand is Hand.DONE]
        if page.state is State.WRITING and len(done) == page.parts:
            page.state = State.STORED
        return page.state is not State.DOOMED

    def give_up(self, slot: int, keep: Iterable[int] = ()) -> None:
        """Abandons the parts that a slot still writes, except for the serials in `keep`."""
        for page in self.all():
            for part, owner in page.slots.items():
                if owner == slot and page.hands[part] is Hand.WRITES and page.serial not in keep:
                    page.hands[part] = Hand.GAVE_UP

    def end(self, slot: int) -> None:
        """Abandons the parts that a slot's process writes, and records that it has ended."""
        self.give_up(slot)
        for page in self.all():
            for part in [part for part, owner in page.slots.items() if owner == slot]:
                del page.slots[part]
                page.ended.add(part)

    def settle(self) -> None:
        for page in list(self.by_key.values()):
            abandoned = Hand.GAVE_UP in page.hands.values() or page.ended == page.hands.keys()
            if page.state is State.WRITING and (page.late or abandoned):
                page.state = State.DOOMED
                self.doomed.append(self.by_key.pop(page.key))
        for page in self.by_key.values():
            page.settled = page.state is State.STORED
        self.doomed = [page for page in self.doomed if not page.let_go()]
