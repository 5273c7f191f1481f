"""The tier compared with a dictionary, under random writes, drops, reads, syncs and openings."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from disk_stores import StoreKind, open_kind
from numbered_pages import key_of
from pagetier.tiers.base import ReadOutcome
from store_pages import CAP, FRAME, MEMORY, bytes_in, content_of, keys_in, outgoing, read_bytes

NUMBERS = st.integers(0, 30)
SIZES = st.one_of(st.integers(1, 4 * FRAME), st.sampled_from([FRAME, 2 * FRAME, 100 * FRAME]))


class Machine(RuleBasedStateMachine):
    store: StoreKind

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="pagetier-test-", dir=MEMORY))
        self.tier = open_kind(self.store, self.folder, CAP, FRAME, 2)
        self.model: dict[int, tuple[int, int]] = {}
        self.version = 0

    @rule(drops=st.lists(NUMBERS, max_size=5), pages=st.dictionaries(NUMBERS, SIZES, max_size=6))
    def write(self, drops: list[int], pages: dict[int, int]) -> None:
        self.version += 1
        batch = [outgoing(number, size, version=self.version) for number, size in pages.items()]
        written = self.tier.write([key_of(number) for number in drops], batch)
        assert not written.undropped
        for number in drops:
            self.model.pop(number, None)
        for (number, size), stored in zip(pages.items(), written.stored, strict=True):
            if stored:
                self.model[number] = (size, self.version)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.model)))
        size, version = self.model[number]
        result, content = read_bytes(self.tier, key_of(number), size)
        assert result.outcome is ReadOutcome.EXACT
        assert content == content_of(key_of(number), size, version)

    @rule(number=st.integers(31, 40))
    def read_unknown(self, number: int) -> None:
        assert read_bytes(self.tier, key_of(number), 5)[0].outcome is ReadOutcome.ABSENT

    @rule()
    def sync(self) -> None:
        self.tier.sync()
        assert self.tier.state().clean

    @rule()
    def reopen(self) -> None:
        self.tier.close()
        self.tier = open_kind(self.store, self.folder, CAP, FRAME, 2)
        assert self.tier.state().opened == "as it was left"

    @invariant()
    def holds_what_it_should(self) -> None:
        assert keys_in(self.tier) == {key_of(number) for number in self.model}
        assert self.tier.state().used_frames == sum(-(-size // FRAME) for size, _ in self.model.values())
        assert bytes_in(self.folder) <= CAP

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.folder)


class OnLmdb(Machine):
    store = "lmdb"


class OnFiles(Machine):
    store = "files"


class OnCompressed(Machine):
    store = "compressed"


SETTINGS = settings(max_examples=10, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck))
OnLmdb.TestCase.settings = OnFiles.TestCase.settings = OnCompressed.TestCase.settings = SETTINGS
TestOnLmdb = OnLmdb.TestCase
TestOnFiles = OnFiles.TestCase
TestOnCompressed = OnCompressed.TestCase
