"""The steps of an engine in test_copier_model.py, and the state that all of its steps need."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from copying_world import BLOCKS, MOST_PAGES, PAGE_BLOCKS, SPACE, CopyingWorld, Process, keys_of
from fake_device import EngineEvent
from keyed_pages import pages_of
from pagetier.client import Keys, LoadHandle, Match, StoreHandle
from pagetier.client.adapters import AsyncCopier
from pagetier.kernels.config.copy_settings import CopySettings

PAGE = 6016
PROMPTS = 3
COPYING = CopySettings(chunk=2 * PAGE, depth=2, reserve_timeout=1.0, queue_limit=6 * PAGE / 2**31)
picks = st.integers(0, 1 << 16)
prompts = st.integers(0, PROMPTS - 1)
counts = st.integers(1, MOST_PAGES)


@dataclass(eq=False)
class Storing:
    """A store in progress. `odd` is the reason why its granted pages need not be a prefix, or ""."""

    copier: AsyncCopier
    store: StoreHandle
    keys: Keys
    blocks: list[int]
    after: EngineEvent | None
    granted: list[int] = field(default_factory=list)
    odd: str = ""
    stored_at_cancel: int = -1
    dead: bool = False


@dataclass(eq=False)
class Loading:
    copier: AsyncCopier
    load: LoadHandle
    keys: Keys
    blocks: list[int]


class EngineMachine(RuleBasedStateMachine):
    """An engine that stores, loads, cancels and closes. The test simulates its device and its daemon."""

    @initialize()
    def begin(self) -> None:
        self.world = CopyingWorld()
        self.graves: list[object] = []
        self.start()

    def start(self) -> None:
        """Starts a new engine process; the previous one has ended."""
        self.process = Process(self.world, COPYING)
        assert self.process.cache.page_bytes == PAGE
        self.storing: list[Storing] = []
        self.loading: list[Loading] = []
        self.free = list(range(BLOCKS))
        self.begun = 0

    # ---- the engine

    @precondition(lambda self: len(self.free) >= MOST_PAGES * PAGE_BLOCKS)
    @rule(
        prompt=prompts, pages=counts, waits=st.booleans(), hears=st.booleans(), delay=st.sampled_from([0.0, 0.0, 0.005])
    )
    def store(self, prompt: int, pages: int, waits: bool, hears: bool, delay: float) -> None:
        keys, blocks = Keys(SPACE, keys_of(prompt, pages).data), self.take(pages)
        after = EngineEvent() if waits else None
        copier = self.process.copier
        one = Storing(copier, copier.store(keys, self.process.cache.slots(blocks), after, delay), keys, blocks, after)
        if after is None:
            self.compute(one)
        else:
            self.process.cache.spoil(blocks)
        self.storing.append(one)
        self.begun += 1
        if hears:
            self.hear()

    def hear(self) -> None:
        """Answers all requests, and enqueues all copies that can be enqueued."""
        self.process.step()
        while self.process.wire.sent:
            self.answer(late=False)
        self.process.step()

    def compute(self, one: Storing) -> None:
        self.process.cache.fill(one.blocks, pages_of(one.keys, PAGE))

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
    def begin_store(self, pick: int) -> None:
        """Ends the delay of a store."""
        self.storing[pick % len(self.storing)].store.begin()

    @precondition(lambda self: self.storing)
    @rule(pick=picks)
    def cancel_store(self, pick: int) -> None:
        """Cancels a store. Its blocks may have other content from then on."""
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
        """Collects completed copies. Freed blocks are overwritten at once."""
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
        """Closes the copier; running copies continue."""
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

    def take(self, pages: int) -> list[int]:
        blocks, self.free = self.free[: pages * PAGE_BLOCKS], self.free[pages * PAGE_BLOCKS :]
        return blocks

    # ---- its daemon

    @precondition(lambda self: self.process.wire.sent)
    @rule(late=st.booleans())
    def answer(self, late: bool) -> None:
        keys, granted = self.process.answer(1) if late else self.process.answer()
        for one in [one for one in self.storing if one.keys is keys]:
            one.granted = granted
            one.odd = one.odd or ("doomed" if late else "")
