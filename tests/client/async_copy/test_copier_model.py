"""A model of stores and loads of engines whose devices delay, reorder, fail and die.

Invariants: a readable page holds what was stored, and was published after its event; no frame is granted while a device
may write to it or read it; a layer that a load reports as ready is in the cache; the index is consistent at the end.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from copying_state_machine import PAGE, PROMPTS, EngineMachine, counts, picks
from copying_world import LAYERS
from keyed_pages import page_of
from pagetier.client import Outcome
from pagetier.kernels.device import Direction


class CopyingMachine(EngineMachine):
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
    def work(self, rounds: int) -> None:
        """Lets devices, copiers and daemon work for some rounds, as without any failure."""
        for _ in range(rounds):
            self.hear()
            self.process.device.advance_all()

    @rule(seconds=st.sampled_from([1e-6, 1e-3, 0.3]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: self.begun > 2)
    @rule(copies=st.integers(1, 2))
    def fail_to_address(self, copies: int) -> None:
        self.process.device.unable = copies
        for one in self.storing:
            one.odd = one.odd or "unable"

    @precondition(lambda self: not self.process.device.dead and self.begun > 2)
    @rule(later=st.integers(-1, 3))
    def die(self, later: int) -> None:
        """Kills the process at once, or in the middle of a later step."""
        if later == 0:
            self.process.device.die()
        elif later > 0:
            self.process.device.fatal = later

    # ---- the daemon

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
        """Ends the process in order: not while a device may use its memory."""
        device = self.process.device
        in_use = bool(device.frames_of(*Direction))
        if not self.process.session.retire():
            return
        device.gone()
        assert not in_use, "the arena was unmapped under a device"
        self.bury()

    @precondition(lambda self: self.process.device.dead)
    @rule()
    def process_ends(self) -> None:
        """Ends the process: its device does nothing after that."""
        self.process.step()
        in_use = self.process.device.frames_of(*Direction)
        self.process.device.gone()
        assert not in_use or not self.process.session.retire(), "the arena was unmapped under a device"
        self.bury()

    def bury(self) -> None:
        self.world.owner.reap(self.process.slot)
        self.graves += [self.process, self.storing, self.loading]
        self.world.devices.remove(self.process.device)
        self.start()

    # ---- always

    @invariant()
    def readable_pages_are_exact(self) -> None:
        if hasattr(self, "world"):
            for prompt in range(PROMPTS + 2):
                self.world.readable(prompt, PAGE)

    @invariant()
    def results_of_stores_are_true(self) -> None:
        for one in getattr(self, "storing", []):
            result = one.store.wait(0)
            outcomes = [result.outcomes[at] for at in one.granted]
            if one.stored_at_cancel >= 0:
                assert result.stored == one.stored_at_cancel, "published after it was cancelled"
            if not one.odd:
                order = [Outcome.STORED, Outcome.PENDING, Outcome.REFUSED]
                assert outcomes == sorted(outcomes, key=order.index), "pages were left out of the middle"
            assert not one.store.ready or result.pending <= len(one.keys) - len(one.granted)

    @invariant()
    def results_of_loads_are_true(self) -> None:
        for one in getattr(self, "loading", []):
            ready = [layer for layer in range(LAYERS) if one.load.ready(layer)] if one.load.pages else []
            pages = self.process.cache.spill(one.blocks)[: one.load.pages]
            for layer in ready:
                where = self.process.cache.layer(layer)
                for page, key in zip(pages, one.keys, strict=True):
                    assert bytes(page[where]) == bytes(page_of(key, PAGE)[where]), "a layer is not there"

    @invariant()
    def index_is_sound(self) -> None:
        if hasattr(self, "world"):
            assert self.world.owner.check_integrity() == []

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.finish()
            self.world.memory.close()

    def finish(self) -> None:
        for one in self.storing:
            if one.after:
                self.engine_gets_there(0) if not one.after.came else None
        for _ in range(60):
            self.process.step()
            self.process.device.advance_all()
            while self.process.wire.sent:
                self.answer(late=False)
            self.world.now += 0.01
            self.readable_pages_are_exact()
        self.results_of_stores_are_true()
        self.results_of_loads_are_true()
        assert all(one.store.ready for one in self.storing)
        if not self.process.device.dead:
            self.everything_is_released()
        self.process.device.gone()
        self.world.owner.reap(self.process.slot)
        self.world.owner.settle()
        assert self.world.owner.check_integrity() == []
        assert self.world.owner.open_entries == 0

    def everything_is_released(self) -> None:
        assert all(one.store.ended for one in self.storing) and all(one.load.ended for one in self.loading)
        assert self.process.copier.close(0)
        self.world.owner.settle()
        assert self.world.owner.open_entries == 0
        assert self.world.owner.evict(24, 100) >= 0 and self.world.owner.header().used_frames == 0
        assert self.process.session.retire()


CopyingMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("TEST_EXAMPLES", "250")),
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCopying = CopyingMachine.TestCase
