"""The steps of test_index_model.py that store pages, and the state that all of its steps need."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from anonymous_segments import DAY_NS, Memory, attach
from index_model import FRAME, Hand, Model, Page, State
from index_with_disk import u32, u64
from page_reservations import reserve
from pagetier.shm._core import KEY_BYTES, Pins, ReserveOutcome, Session
from pagetier.shm.geometry import Geometry

GEOMETRY = Geometry(frame_bytes=FRAME, frames=24, entries=20, spaces=2)
SPACES = [bytes([number]) * KEY_BYTES for number in (1, 2, 3)]
MOST_SESSIONS = 4


def key_bytes(number: int) -> bytes:
    """Returns a key. All keys have one of two home buckets at the ends of the dictionary, and pairs share a tag."""
    home = (15 if number % 2 else 0).to_bytes(8, "little")
    tag = (number // 4).to_bytes(8, "little")
    return home + tag + sha256(bytes([number])).digest()[:16]


KEYS = [key_bytes(number) for number in range(26)]
LONGEST = 8
chains = st.one_of(
    st.lists(st.integers(0, len(KEYS) - 1), max_size=LONGEST),
    st.builds(lambda first, count: list(range(first, first + count)), st.integers(0, 17), st.integers(1, LONGEST)),
)
sizes = st.one_of(
    st.sampled_from([1, FRAME - 1, FRAME, FRAME + 1, 3 * FRAME, 0, 24 * FRAME, 24 * FRAME + 1]),
    st.integers(1, 6 * FRAME),
)
picks = st.integers(0, 1 << 16)
flaws = st.integers(0, 2 * LONGEST)


class Member:
    """A session with its pins and reservations. After its death, its Python objects are kept and never released."""

    def __init__(self, memory: Memory, slot: int, token: int) -> None:
        self.session: Session = memory.session(slot)
        self.slot = slot
        self.token = token
        self.pins: list[tuple[Pins, list[Page]]] = []
        self.grants: list[tuple[Page, int]] = []


class StoringMachine(RuleBasedStateMachine):
    """Processes attach and die, daemons take over, pages are stored.

    Each step checks which pages have left the index.
    """

    @initialize()
    def begin(self) -> None:
        self.memory = Memory(GEOMETRY)
        self.owner: Any = self.memory.adopted()
        self.model = Model(GEOMETRY.frames, GEOMETRY.entries)
        self.table: list[bytes | None] = [None, None]
        self.members: list[Member] = []
        self.dead: list[Member] = []
        self.serials: set[int] = set()
        self.tokens = 0
        self.watcher = self.join()
        self.attach()

    def join(self) -> Member:
        self.tokens += 1
        slot = attach(self.owner, self.tokens)
        assert slot not in {member.slot for member in self.members}
        return Member(self.memory, slot, self.tokens)

    # ---- checks between the steps

    def pinned(self) -> set[int]:
        return {page.serial for member in self.members for _, pages in member.pins for page in pages}

    def alive(self, page: Page) -> bool:
        """Returns whether the page is in the index, without stamping it."""
        pins = self.watcher.session.repin(Pins, None, u32(page.entry), u64(page.serial))
        found = len(pins) == 1
        pins.release()
        return found

    def take_note_of_evicted(self, protected: set[int]) -> list[Page]:
        """Removes evicted pages from the model. Asserts that only the coldest unused pages were evicted."""
        pinned = self.pinned()
        evicted = [page for page in self.model.stored() if not self.alive(page)]
        for page in evicted:
            assert page.settled and page.serial not in pinned and page.serial not in protected, page
            del self.model.by_key[page.key]
        left = [page for page in self.evictable(protected) if page.serial not in self.model.blurred]
        assert all(gone.tick < page.tick for gone in evicted for page in left)
        self.model.blurred |= pinned
        return evicted

    def evictable(self, protected: set[int] = frozenset()) -> list[Page]:  # type: ignore[assignment]
        without = self.pinned() | protected
        return [page for page in self.model.stored() if page.settled and page.serial not in without]

    # ---- processes

    @precondition(lambda self: len(self.members) < MOST_SESSIONS)
    @rule()
    def attach(self) -> None:
        self.members.append(self.join())

    @precondition(lambda self: self.members)
    @rule(pick=picks, holds=st.sets(st.integers(0, 7)))
    def attach_again(self, pick: int, holds: set[int]) -> None:
        """Attaches again after a lost connection; the process lost the responses for some granted pages."""
        member = self.members[pick % len(self.members)]
        assert attach(self.owner, member.token) == member.slot
        known = {page.serial for at, (page, _) in enumerate(member.grants) if at in holds}
        self.owner.keep_only(member.slot, u64(*known))
        member.grants = [(page, part) for page, part in member.grants if page.serial in known]
        self.model.give_up(member.slot, known)
        self.model.settle()

    def bury(self, member: Member) -> None:
        self.members.remove(member)
        self.dead.append(member)

    @precondition(lambda self: self.members and self.model.by_key)
    @rule(pick=picks)
    def die(self, pick: int) -> None:
        member = self.members[pick % len(self.members)]
        self.owner.reap(member.slot)
        self.bury(member)
        self.model.end(member.slot)
        self.model.settle()

    @precondition(lambda self: self.members and self.model.by_key)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        member = self.members[pick % len(self.members)]
        assert member.session.retire()
        assert not member.session.usable
        self.owner.reap(member.slot)
        self.bury(member)
        self.model.end(member.slot)
        self.model.settle()

    @precondition(lambda self: self.model.by_key)
    @rule(deaths=st.sets(picks, max_size=2))
    def adopt(self, deaths: set[int]) -> None:
        """Ends the daemon and some processes; the next daemon adopts the segments."""
        incarnation = self.owner.header().incarnation
        for pick in deaths:
            if self.members:
                member = self.members[pick % len(self.members)]
                self.bury(member)
                self.model.end(member.slot)
        self.owner = None
        self.owner = self.memory.adopted(sum(1 << member.slot for member in [*self.members, self.watcher]))
        self.model.settle()
        assert self.owner.header().incarnation == incarnation + 1

    # ---- storing

    def space(self, digest: bytes) -> int:
        number = self.owner.space(digest, f"space {digest[0]}", 16, 0, 0)
        if digest not in self.table:
            empty = [at for at, have in enumerate(self.table) if have is None or not self.model.in_space(have)]
            if not empty:
                assert number == -1
                return -1
            self.table[self.table.index(None) if None in self.table else empty[0]] = digest
        assert number == self.table.index(digest)
        return int(number)

    @precondition(lambda self: self.members)
    @rule(pick=picks, first=st.integers(0, len(KEYS) - LONGEST), asked=st.lists(sizes, min_size=2, max_size=LONGEST))
    def store(self, pick: int, first: int, asked: list[int]) -> None:
        """Stores pages without delay, as engines usually do."""
        member = self.members[pick % len(self.members)]
        self.ask(member, list(range(first, first + len(asked))), asked, SPACES[0], (0, 1), late=False)
        self.finish_all(member)

    @precondition(lambda self: self.members)
    @rule(
        pick=picks,
        chain=chains,
        size=st.lists(sizes, min_size=LONGEST, max_size=LONGEST),
        space=st.sampled_from(SPACES),
        parts=st.sampled_from([(0, 1), (0, 2), (1, 2), (31, 32)]),
        late=st.booleans(),
    )
    def reserve(
        self, pick: int, chain: list[int], size: list[int], space: bytes, parts: tuple[int, int], late: bool
    ) -> None:
        """Reserves pages and publishes them later, as slow engines do."""
        self.ask(self.members[pick % len(self.members)], chain, size[: len(chain)], space, parts, late=late)

    def ask(
        self, member: Member, chain: list[int], asked: list[int], space: bytes, parts: tuple[int, int], *, late: bool
    ) -> None:
        number = self.space(space)
        if number < 0:
            return
        part, count = parts
        self.model.settle()
        protected = {self.model.by_key[key].serial for key in chain if key in self.model.by_key}
        before = list(self.model.by_key.values())
        keys = b"".join(KEYS[key] for key in chain)
        ttl = 1 if late else DAY_NS
        answers = reserve(self.owner, member.slot, number, part, count, ttl, keys, u64(*asked))
        outcomes, entries, serials = (
            np.frombuffer(a, t).tolist() for a, t in zip(answers, ("u1", "<u4", "<u8"), strict=True)
        )
        evicted = self.take_note_of_evicted(protected)
        self.model.tick()
        granted: list[tuple[int, Page]] = []
        for at, key in enumerate(chain):
            page = self.model.by_key.get(key)
            if page is None and outcomes[at] == ReserveOutcome.GRANTED:
                page = self.grant(key, space, entries[at], serials[at], asked[at], count, late=late)
                granted.append((at, page))
            self.check_answer(outcomes[at], page, asked[at], parts, fresh=bool(granted and granted[-1][1] is page))
            if page is not None:
                assert (entries[at], serials[at]) == (page.entry, page.serial)
                self.model.stamp(page, self.model.now, len(chain) - at)
            if outcomes[at] == ReserveOutcome.GRANTED:
                assert page is not None
                page.hands[part], page.slots[part] = Hand.WRITES, member.slot
                member.grants.append((page, part))
        refused = [at for at, outcome in enumerate(outcomes) if outcome == ReserveOutcome.REFUSED_FULL]
        assert self.model.free_frames >= 0 and self.model.free_entries >= 0
        self.check_room(refused, granted, evicted, asked, protected)
        assert not evicted or all(page in before for page in evicted)

    def grant(self, key: int, space: bytes, entry: int, serial: int, size: int, parts: int, *, late: bool) -> Page:
        assert serial not in self.serials
        assert entry not in {page.entry for page in self.model.all()}
        self.serials.add(serial)
        page = Page(key, space, entry, serial, size, parts, late, (self.model.now, 0))
        self.model.by_key[key] = page
        return page

    def check_answer(self, outcome: int, page: Page | None, size: int, parts: tuple[int, int], *, fresh: bool) -> None:
        if page is None:
            assert outcome == (
                ReserveOutcome.REFUSED_FULL if 0 < size <= GEOMETRY.frames * FRAME else ReserveOutcome.REFUSED_SIZE
            )
        elif page.state is State.STORED:
            assert outcome == ReserveOutcome.PRESENT
        elif fresh and not page.hands:
            assert outcome == ReserveOutcome.GRANTED
        else:
            joins = page.parts == parts[1] and page.size == size and parts[0] not in page.hands
            assert outcome == (ReserveOutcome.GRANTED if joins else ReserveOutcome.PENDING)

    def check_room(
        self,
        refused: list[int],
        granted: list[tuple[int, Page]],
        evicted: list[Page],
        asked: list[int],
        protected: set[int],
    ) -> None:
        """Asserts that no page is rejected while an older one could be evicted, and no page is evicted without need."""
        mine = {page.serial for _, page in granted}
        if refused:
            assert self.evictable(protected | mine) == []
        for at in refused:
            later = [page for when, page in granted if when > at]
            frames = self.model.free_frames + sum(page.frames for page in later)
            assert -(-asked[at] // FRAME) > frames or self.model.free_entries + len(later) == 0
        if evicted and not refused:
            assert self.model.free_frames < max(page.frames for page in evicted) or self.model.free_entries == 0

    def finish_all(self, member: Member) -> None:
        while member.grants:
            self.finish(member, *member.grants.pop(0))

    def finish(self, member: Member, page: Page, part: int) -> None:
        share = page.share(part)
        content = np.frombuffer(page.content[share] or b"\0", np.uint8)
        if share.stop > share.start:
            where = u64(content.ctypes.data), u64(share.stop - share.start)
            assert member.session.copy_in(u32(page.entry), *where, share.start, 2) == 1
        stored = member.session.publish(u32(page.entry), u64(page.serial), part)
        assert stored == bytes([self.model.finish(page, part)])
