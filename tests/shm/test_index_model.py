"""The index compared with a simple model after each step: successive daemons and several sessions on one memory."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from index_model import Hand, Page, State
from index_state_machine import GEOMETRY, KEYS, LONGEST, SPACES, Member, StoringMachine, chains, flaws, picks
from index_with_disk import u32, u64
from pagetier.shm._core import Pins, TierFlag


class IndexMachine(StoringMachine):
    # ---- writing

    @precondition(lambda self: any(member.grants for member in self.members))
    @rule(pick=picks, which=picks)
    def publish(self, pick: int, which: int) -> None:
        member = self.writer(pick)
        page, part = member.grants.pop(which % len(member.grants))
        self.finish(member, page, part)

    @precondition(lambda self: any(member.grants for member in self.members))
    @rule(pick=picks)
    def publish_all(self, pick: int) -> None:
        self.finish_all(self.writer(pick))

    @precondition(lambda self: any(member.grants for member in self.members))
    @rule(pick=picks, which=picks)
    def abandon(self, pick: int, which: int) -> None:
        member = self.writer(pick)
        page, part = member.grants.pop(which % len(member.grants))
        member.session.abandon(u32(page.entry), u64(page.serial), part)
        page.hands[part] = Hand.GAVE_UP

    def writer(self, pick: int) -> Member:
        writers = [member for member in self.members if member.grants]
        return writers[pick % len(writers)]

    # ---- reading

    @precondition(lambda self: self.members)
    @rule(pick=picks, chain=chains, flaw=flaws)
    def match(self, pick: int, chain: list[int], flaw: int) -> None:
        self.look_up(self.members[pick % len(self.members)], chain, flaw).release()

    @precondition(lambda self: self.members and self.model.by_key)
    @rule(pick=picks, known=st.lists(picks, min_size=1, max_size=LONGEST), chain=chains, flaw=flaws)
    def match_and_pin(self, pick: int, known: list[int], chain: list[int], flaw: int) -> None:
        """Matches keys that are present or about to be stored, followed by others."""
        member = self.members[pick % len(self.members)]
        there = [page.key for page in self.model.all()]
        chain = [there[at % len(there)] for at in known] + chain
        member.pins.append((self.look_up(member, chain, flaw), self.model.prefix(chain)))

    def look_up(self, member: Member, chain: list[int], flaw: int) -> Pins:
        pins = member.session.match(Pins, None, b"".join(KEYS[key] for key in chain))
        pages = self.model.prefix(chain)
        now, held = self.model.tick(), {page.serial for _, pinned in member.pins for page in pinned}
        for at, page in enumerate(pages):
            if page.serial in held:
                self.model.blurred.add(page.serial)  # its tick is changed or a little older
            else:
                self.model.stamp(page, now, len(chain) - at)
            held.add(page.serial)
        self.check_pins(member, pins, pages, flaw)
        return pins

    @precondition(lambda self: any(member.pins for member in [*self.members, *self.dead]))
    @rule(pick=picks, whose=picks, which=picks, hold=st.booleans())
    def repin(self, pick: int, whose: int, which: int, hold: bool) -> None:
        """Pins the pages of another session's match. That session may be dead, and may have released its pins."""
        holders = [member for member in [*self.members, *self.dead] if member.pins]
        holder = holders[whose % len(holders)]
        given, pages = holder.pins[which % len(holder.pins)]
        member = self.members[pick % len(self.members)] if self.members else self.watcher
        pins = member.session.repin(Pins, None, given.entries, given.serials)
        expected = []
        for page in pages:
            if self.model.by_key.get(page.key) is not page:
                break
            expected.append(page)
        self.check_pins(member, pins, expected, 99)
        if hold and member is not self.watcher:
            member.pins.append((pins, expected))
        else:
            pins.release()

    def check_pins(self, member: Member, pins: Pins, pages: list[Page], flaw: int) -> None:
        """Asserts that the pages are pinned and, as far as the buffers have the right sizes, loaded exactly."""
        assert len(pins) == len(pages)
        assert np.frombuffer(pins.sizes, np.uint64).tolist() == [page.size for page in pages]
        assert pins.entries == u32(*(page.entry for page in pages))
        assert pins.serials == u64(*(page.serial for page in pages))
        out = [np.zeros(page.size + 1, np.uint8) for page in pages]
        wanted = [page.size + (at == flaw) for at, page in enumerate(pages)]
        where = u64(*(buffer.ctypes.data for buffer in out)), u64(*wanted)
        copied = member.session.copy_out(pins, 0, *where, 3)
        assert copied == min(len(pages), flaw)
        for at, page in enumerate(pages):
            assert out[at].tobytes() == (page.content if at < copied else bytes(page.size)) + b"\0"

    @precondition(lambda self: any(member.pins for member in self.members))
    @rule(pick=picks, which=picks)
    def release(self, pick: int, which: int) -> None:
        holders = [member for member in self.members if member.pins]
        member = holders[pick % len(holders)]
        pins, _ = member.pins.pop(which % len(member.pins))
        pins.release()
        pins.release()
        assert not pins.pinned and pins.sizes == b""

    # ---- making room

    @rule()
    def settle(self) -> None:
        self.model.settle()
        assert self.owner.settle() == self.model.open()

    @precondition(lambda self: len(self.model.by_key) > 4)
    @rule(frames=st.integers(0, GEOMETRY.frames), limit=st.integers(0, 30))
    def evict(self, frames: int, limit: int) -> None:
        count = self.owner.evict(frames, limit)
        evicted = self.take_note_of_evicted(set())
        assert len(evicted) == count <= limit
        free = self.model.free_frames
        assert free >= frames or count == limit or self.evictable() == []
        assert not evicted or free - max(page.frames for page in evicted) < frames

    @precondition(lambda self: len(self.model.by_key) > 4)
    @rule(space=st.sampled_from([*SPACES, None]))
    def flush(self, space: bytes | None) -> None:
        if space is not None and space not in self.table:
            return
        self.model.settle()
        meant = [page for page in self.model.by_key.values() if space in (page.space, None)]
        free = [page for page in self.evictable() if page in meant]
        number = -1 if space is None else self.table.index(space)
        assert self.owner.flush(number, TierFlag.BOTH) == (len(free), len(meant) - len(free))
        for page in free:
            del self.model.by_key[page.key]

    # ---- always

    @invariant()
    def is_as_the_model_says(self) -> None:
        if not hasattr(self, "owner"):
            return
        assert self.owner.check_integrity() == []
        header, model = self.owner.header(), self.model
        assert header.used_frames == model.frames - model.free_frames
        assert header.free_frames == self.owner.free_frames == model.free_frames
        assert header.free_entries == model.free_entries
        assert header.open_entries == self.owner.open_entries == model.open()
        assert header.pages == len(model.by_key)
        assert header.bytes == sum(page.size for page in model.by_key.values())
        pages = {space.digest: space.pages for space in self.owner.spaces()}
        assert pages == {space: len(model.in_space(space)) for space in self.table if space}

    @invariant()
    def holds_what_it_stored(self) -> None:
        if hasattr(self, "owner"):
            assert [page for page in self.model.stored() if not self.alive(page)] == []

    def teardown(self) -> None:
        if not hasattr(self, "owner"):
            return
        while self.members:
            self.leave(0)
        self.flush(None)
        waiting = self.model.all()
        assert all(page.state is State.WRITING and page.let_go() for page in waiting), "a page is left"
        self.is_as_the_model_says()
        self.memory.close()


IndexMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("TEST_EXAMPLES", "150")),
    stateful_step_count=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestIndex = IndexMachine.TestCase
