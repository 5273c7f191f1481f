"""Stores and loads of engines whose devices delay, reorder, fail and die; what may be readable when is what is checked.

Whatever happens: a readable page holds what was stored and was published behind its event; no frame is granted while a
device may write to it or read it; what a load says is there is there; nothing is lost of the index in the end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from copying_world import BLOCKS, LAYERS, MOST_PAGES, PAGE_BLOCKS, SPACE, Process, World, content_of, keys_of
from fake_device import EngineEvent
from pagetier.client import Copier, Keys, Load, Outcome, Store
from pagetier.client.match import Match
from pagetier.kernels.device import Direction
from pagetier.kernels.thresholds import CopySettings

PAGE = 6016
PROMPTS = 3
COPYING = CopySettings(chunk=2 * PAGE, depth=2, patience=1.0, backlog=6 * PAGE / 2**31)
picks = st.integers(0, 1 << 16)
prompts = st.integers(0, PROMPTS - 1)
counts = st.integers(1, MOST_PAGES)


@dataclass(eq=False)
class Storing:
    """A store that goes on. odd: why the pages that were granted need not be stored from the head on, or nothing."""

    copier: Copier
    store: Store
    keys: Keys
    blocks: list[int]
    after: EngineEvent | None
    granted: list[int] = field(default_factory=list)
    odd: str = ""
    stored_at_cancel: int = -1
    dead: bool = False


@dataclass(eq=False)
class Loading:
    copier: Copier
    load: Load
    keys: Keys
    blocks: list[int]


class CopyingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.graves: list[object] = []
        self.start()

    def start(self) -> None:
        """A process of its own, the one before is no more."""
        self.process = Process(self.world, COPYING)
        assert self.process.cache.page_bytes == PAGE
        self.storing: list[Storing] = []
        self.loading: list[Loading] = []
        self.free = list(range(BLOCKS))
        self.begun = 0

    # ---- the engine

    @precondition(lambda self: len(self.free) >= MOST_PAGES * PAGE_BLOCKS)
    @rule(prompt=prompts, pages=counts, waits=st.booleans(), told=st.booleans())
    def store(self, prompt: int, pages: int, waits: bool, told: bool) -> None:
        keys, blocks = Keys(SPACE, keys_of(prompt, pages).data), self.take(pages)
        after = EngineEvent() if waits else None
        copier = self.process.copier
        one = Storing(copier, copier.store(keys, self.process.cache.slots(blocks), after), keys, blocks, after)
        if after is None:
            self.compute(one)
        else:
            self.process.cache.spoil(blocks)
        self.storing.append(one)
        self.begun += 1
        if told:
            self.hear()

    def hear(self) -> None:
        """The daemon answers all, and what can be enqueued is."""
        self.process.step()
        while self.process.wire.sent:
            self.answer(late=False)
        self.process.step()

    def compute(self, one: Storing) -> None:
        contents = [content_of(bytes(key), PAGE) for key in one.keys]
        self.process.cache.fill(one.blocks, contents)

    @precondition(lambda self: any(one.after and not one.after.came for one in self.storing))
    @rule(pick=picks)
    def engine_gets_there(self, pick: int) -> None:
        waiting = [one for one in self.storing if one.after and not one.after.came]
        one = waiting[pick % len(waiting)]
        assert one.after is not None
        if one.stored_at_cancel < 0:
            self.compute(one)
        one.after.came = True

    @precondition(lambda self: len(self.free) >= MOST_PAGES * PAGE_BLOCKS)
    @rule(prompt=prompts, first=st.integers(0, 2), pages=counts, there=st.booleans())
    def load(self, prompt: int, first: int, pages: int, there: bool) -> None:
        if there:
            self.world.store_elsewhere(prompt, MOST_PAGES, PAGE)
        keys, blocks = keys_of(prompt), self.take(pages)
        self.process.cache.spoil(blocks)
        slots = self.process.cache.slots(blocks)
        with self.process.session.match(Match, keys, keys.data) as match:
            load = self.process.copier.load(match, slots, first)
            here = max(0, min(pages, len(match) - first))
        assert load.pages in (here, 0) and (load.pages or not here or self.process.device.dead)
        self.loading.append(Loading(self.process.copier, load, keys[first : first + load.pages], blocks))

    @precondition(lambda self: self.storing)
    @rule(pick=picks)
    def cancel_store(self, pick: int) -> None:
        """The blocks have other content from then on."""
        one = self.storing[pick % len(self.storing)]
        if not one.store.ready and one.stored_at_cancel < 0:
            one.store.cancel()
            one.odd = "cancelled"
            one.stored_at_cancel = one.store.wait(0).stored
            self.process.cache.spoil(one.blocks)

    @precondition(lambda self: self.loading)
    @rule(pick=picks)
    def cancel_load(self, pick: int) -> None:
        self.loading[pick % len(self.loading)].load.cancel()

    @rule()
    def reap_what_has_ended(self) -> None:
        """Blocks that are free again are written to by others at once."""
        for one in [one for one in self.storing if one.store.ready]:
            self.storing.remove(one)
            self.process.cache.spoil(one.blocks)
            self.free += one.blocks if one.store.ended else []
        for other in [other for other in self.loading if other.load.ended]:
            self.loading.remove(other)
            self.process.cache.spoil(other.blocks)
            self.free += other.blocks

    @precondition(lambda self: self.begun > 2)
    @rule()
    def close(self) -> None:
        """What goes on goes on."""
        old = self.process.copier
        storing = any(one.copier is old and not one.store.ended for one in self.storing)
        loading = any(one.copier is old and not one.load.ended for one in self.loading)
        old.close(0)
        self.process.step()
        assert old.close(0) or storing or loading or self.process.device.dead
        slots = self.process.cache.slots(list(range(PAGE_BLOCKS)))
        assert old.store(keys_of(0, 1), slots).wait(0).refused == 1
        if not self.process.device.dead:
            self.process.copier = self.process.new_copier()

    # ---- the device, and the threads of copies

    @rule(pick=picks, steps=st.integers(1, 12))
    def let_copies_happen(self, pick: int, steps: int) -> None:
        streams = self.process.device.streams
        for _ in range(steps):
            streams[pick % len(streams)].advance()

    @rule(pick=picks)
    def step(self, pick: int) -> None:
        lanes = self.process.lanes
        lanes[pick % len(lanes)].step()

    @rule(rounds=st.integers(1, 3))
    def all_goes_on(self, rounds: int) -> None:
        """For a while, as it does where nothing goes wrong."""
        for _ in range(rounds):
            self.hear()
            self.process.device.advance_all()

    @rule(seconds=st.sampled_from([1e-6, 1e-3, 0.3]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: self.begun > 2)
    @rule(copies=st.integers(1, 2))
    def can_not_address(self, copies: int) -> None:
        self.process.device.unable = copies
        for one in self.storing:
            one.odd = one.odd or "unable"

    @precondition(lambda self: not self.process.device.dead and self.begun > 2)
    @rule(later=st.integers(-1, 3))
    def die(self, later: int) -> None:
        """Perhaps; at once, or in the middle of a step."""
        if later == 0:
            self.process.device.die()
        elif later > 0:
            self.process.device.fatal = later

    # ---- the daemon

    @precondition(lambda self: self.process.wire.sent)
    @rule(late=st.booleans())
    def answer(self, late: bool) -> None:
        keys, granted = self.process.answer(1) if late else self.process.answer()
        for one in [one for one in self.storing if one.keys is keys]:
            one.granted = granted
            one.odd = one.odd or ("doomed" if late else "")

    @rule(prompt=st.integers(0, PROMPTS + 1), pages=counts)
    def another_process_stores(self, prompt: int, pages: int) -> None:
        self.world.store_elsewhere(prompt, pages, PAGE)

    @rule(frames=st.integers(1, 24))
    def evict(self, frames: int) -> None:
        self.world.owner.settle()
        self.world.owner.evict(frames, 100)

    @precondition(lambda self: self.begun > 3)
    @rule()
    def leave(self) -> None:
        """The process wants to go: not while a device may use its memory."""
        device = self.process.device
        in_use = bool(device.frames_of(*Direction))
        if not self.process.session.retire():
            return
        assert not in_use, "the arena was unmapped under a device"
        device.gone()
        self.bury()

    @precondition(lambda self: self.process.device.dead)
    @rule()
    def process_ends(self) -> None:
        """Its device does nothing more then, and not before."""
        self.process.step()
        in_use = self.process.device.frames_of(*Direction)
        assert not in_use or not self.process.session.retire(), "the arena was unmapped under a device"
        self.process.device.gone()
        self.bury()

    def bury(self) -> None:
        self.world.owner.reap(self.process.slot)
        self.graves += [self.process, self.storing, self.loading]
        self.world.devices.remove(self.process.device)
        self.start()

    # ---- always

    @invariant()
    def what_is_readable_is_sound(self) -> None:
        if hasattr(self, "world"):
            for prompt in range(PROMPTS + 2):
                self.world.readable(prompt, PAGE)

    @invariant()
    def stores_say_the_truth(self) -> None:
        for one in getattr(self, "storing", []):
            result = one.store.wait(0)
            told = [result.outcomes[at] for at in one.granted]
            if one.stored_at_cancel >= 0:
                assert result.stored == one.stored_at_cancel, "published after it was cancelled"
            if not one.odd:
                order = [Outcome.STORED, Outcome.PENDING, Outcome.REFUSED]
                assert told == sorted(told, key=order.index), "pages were left out of the middle"
            assert not one.store.ready or result.pending <= len(one.keys) - len(one.granted)

    @invariant()
    def loads_say_the_truth(self) -> None:
        for one in getattr(self, "loading", []):
            ready = [layer for layer in range(LAYERS) if one.load.ready(layer)] if one.load.pages else []
            pages = self.process.cache.spill(one.blocks)[: one.load.pages]
            for layer in ready:
                where = self.process.cache.layer(layer)
                for page, key in zip(pages, one.keys, strict=True):
                    assert bytes(page[where]) == bytes(content_of(bytes(key), PAGE)[where]), "a layer is not there"

    @invariant()
    def index_is_sound(self) -> None:
        if hasattr(self, "world"):
            assert self.world.owner.check_integrity() == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.come_to_an_end()
            self.world.memory.close()

    def come_to_an_end(self) -> None:
        for one in self.storing:
            if one.after:
                self.engine_gets_there(0) if not one.after.came else None
        for _ in range(60):
            self.process.step()
            self.process.device.advance_all()
            while self.process.wire.sent:
                self.answer(late=False)
            self.world.now += 0.01
            self.what_is_readable_is_sound()
        self.stores_say_the_truth()
        self.loads_say_the_truth()
        assert all(one.store.ready for one in self.storing)
        if not self.process.device.dead:
            self.all_is_given_back()
        self.process.device.gone()
        self.world.owner.reap(self.process.slot)
        self.world.owner.settle()
        assert self.world.owner.check_integrity() == []
        assert self.world.owner.open_entries == 0

    def all_is_given_back(self) -> None:
        assert all(one.store.ended for one in self.storing) and all(one.load.ended for one in self.loading)
        assert self.process.copier.close(0)
        self.world.owner.settle()
        assert self.world.owner.open_entries == 0
        assert self.world.owner.evict(24, 100) >= 0 and self.world.owner.header()["used_frames"] == 0
        assert self.process.session.retire()

    def take(self, pages: int) -> list[int]:
        blocks, self.free = self.free[: pages * PAGE_BLOCKS], self.free[pages * PAGE_BLOCKS :]
        return blocks


CopyingMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("PAGETIER_EXAMPLES", "250")),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCopying = CopyingMachine.TestCase
