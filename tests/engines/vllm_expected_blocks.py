"""The expected content of each block of an engine's cache, token by token, while a worker stores, loads and computes.

It is independent of the code that plans stores and loads. A store may read its blocks as late as its plan allows, a
load may write its blocks at any time until its end: a read of, or a computation from, any wrong content fails the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from pagetier.client import Client, Keys
from pagetier.client.adapters import adopt
from pagetier.client.engines.vllm.messages import LoadCommand, StepCommands, StoreCommand
from pagetier.client.engines.vllm.paged_group import PagedGroup
from pagetier.client.groups import Recurrent

Tokens = tuple[int, ...]
_ENTIRE = -1  # the place of a recurrent state in its block


class Page(NamedTuple):
    """The page of a group that ends with these tokens."""

    group: int
    tokens: Tokens


class Checkpoint(NamedTuple):
    """A recurrent state within a step that is left in a block of its own: that before token `ends`.

    `group` is vLLM's number, and `place` the block's in the table of the group.
    """

    group: int
    place: int
    ends: int


class Computed(NamedTuple):
    """One request in one step: tokens [begins, ends) of `tokens`, with the blocks of each of vLLM's groups.

    Windows that vLLM does not cache are computed again from `replays` on, which is before `begins` behind a hit.
    """

    request: str
    tokens: Tokens
    begins: int
    ends: int
    tables: Sequence[Sequence[int]]
    replays: int
    checkpoints: tuple[Checkpoint, ...] = ()


class Keeps(Enum):
    """The tokens before a step whose state a group without pages has to keep."""

    ALL = 1
    WINDOW = 2
    REPLAYED_WINDOW = 3
    OPEN_BLOCK = 4
    LAST_STATE = 5


class UncachedGroup(NamedTuple):
    """A group of vLLM that has no pages here: its state is that of a request.

    `number` is vLLM's, and `window` is 0 for a group without one.
    """

    number: int
    block: int
    keeps: Keeps
    window: int = 0

    def begins(self, one: Computed) -> int:
        """Returns the first token that a step computes."""
        return one.replays if self.keeps is Keeps.REPLAYED_WINDOW else one.begins

    def needed(self, one: Computed) -> range:
        """Returns the tokens before a step that it needs. A window that is replayed needs none behind a hit."""
        begins = self.begins(one)
        if begins == one.ends:  # the budget of the step ended within what it replays
            return range(0)
        if self.keeps is Keeps.OPEN_BLOCK:
            return range(begins // self.block * self.block, begins)
        if self.keeps is Keeps.LAST_STATE:
            return range(max(0, begins - 1), begins)
        if self.keeps is Keeps.REPLAYED_WINDOW and one.replays < one.begins:
            return range(0)
        return range(max(0, begins - self.window + 1) if self.window else 0, begins)

    def place(self, one: Computed, position: int) -> tuple[int, int]:
        """Returns the block of a token and its place there. A buffer has one block for a whole request."""
        table = one.tables[self.number]
        block = table[0] if self.keeps is Keeps.OPEN_BLOCK else table[position // self.block]
        return block, _ENTIRE if self.keeps is Keeps.LAST_STATE else position % self.block

    def written(self, one: Computed) -> range:
        """Returns the tokens whose state a step leaves."""
        return range(one.ends - 1 if self.keeps is Keeps.LAST_STATE else self.begins(one), one.ends)


@dataclass
class Held:
    """The content of a block for a group: for each place, the tokens up to it, which determine the content."""

    group: int
    cells: dict[int, Tokens] = field(default_factory=dict)


class Reading(NamedTuple):
    """A page that is planned to be stored but not yet read."""

    command: StoreCommand
    blocks: tuple[int, ...]
    key: bytes
    page: Page


@dataclass
class Loading:
    """The page of each block, and the block's place in it; None if the page is unavailable."""

    pages: dict[int, tuple[Page, int] | None]


class TrueWorker:
    """Stores and loads through a client of its own. The content of a page in the daemon is its key.

    `first` is the number of its first group: those before are another rank's.
    """

    def __init__(
        self,
        client: Client,
        groups: Sequence[PagedGroup],
        first: int = 0,
        uncached: Sequence[UncachedGroup] = (),
    ) -> None:
        self.client, self.groups, self.first, self.uncached = client, groups, first, uncached
        self.held: dict[int, Held] = {}
        self.reading: list[Reading] = []
        self.loading: dict[str, Loading] = {}
        self.planned_stores = 0
        self._names: dict[bytes, Page] = {}

    def know(self, hashes: Sequence[bytes], tokens: Tokens) -> None:
        """Records the hashes that vLLM computed for these tokens."""
        for at, group in enumerate(self.groups):
            whole = len(hashes) // group.hashes
            keys = group.keys([hashes[(page + 1) * group.hashes - 1] for page in range(whole)])
            for page, key in enumerate(keys):
                name = Page(at, tokens[: (page + 1) * group.kind.page_tokens])
                assert self._names.setdefault(key, name) == name, "two prompts have the same hash"

    def step(
        self,
        commands: StepCommands,
        zeroed: Iterable[int],
        computed: Sequence[Computed],
        copies: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Executes a step like the worker: ends stores of reused blocks, begins loads, computes, begins stores."""
        self._make_room(commands.written)
        for block in zeroed:
            self._overwrite(block, -1)
        for source, target in copies:
            held = self.held[source]
            self._overwrite(target, held.group).cells = dict(held.cells)
        for load in commands.loads:
            self._begin(LoadCommand(load.request, tuple(one for one in load.groups if self._is_own(one.group))))
        self._compute(computed)
        self.begin_stores(commands.stores)
        for reading in self.reading:
            assert self._holds(reading.blocks, reading.page), f"{reading} would be read after it was overwritten"

    def begin_stores(self, stores: Iterable[StoreCommand]) -> None:
        """Begins the stores of a step that was computed."""
        for store in stores:
            if self._is_own(store.group):
                self._store(store)

    def end_stores(self, which: slice) -> set[str]:
        """Completes some stores. Returns the requests whose blocks are no longer needed."""
        ended, holding = self.reading[which], self._holding()
        for reading in ended:
            self._publish(reading)
        self.reading = [reading for reading in self.reading if reading not in ended]
        return holding - self._holding()

    def end_load(self, request: str, *, fails: bool) -> bool:
        """Returns whether all pages of the load are present."""
        loading = self.loading.pop(request)
        whole = not fails and None not in loading.pages.values()
        for block, page in loading.pages.items():
            self._overwrite(block, -1)
            if page is not None and not fails:
                self.held[block] = Held(page[0].group, self._cells(*page))
        return whole

    def _is_own(self, group: int) -> bool:
        return self.first <= group < self.first + len(self.groups)

    def _group_of(self, command: StoreCommand) -> PagedGroup:
        return self.groups[command.group - self.first]

    # ---- stores

    def _make_room(self, written: frozenset[int]) -> None:
        for reading in self.reading:
            if not written.isdisjoint(reading.blocks):
                assert not reading.command.retains_blocks, "retained blocks were allocated to another request"
                self._publish(reading)
        self.reading = [reading for reading in self.reading if written.isdisjoint(reading.blocks)]

    def _store(self, command: StoreCommand) -> None:
        group = self._group_of(command)
        keys = Keys(group.namespace, command.keys)
        for blocks, key in zip(self._by_page(command), keys, strict=True):
            if any(blocks):
                assert all(blocks), "a page without some of its blocks"
                page = self._names[key]
                assert page.group + self.first == command.group, "the page belongs to another group"
                assert self._holds(blocks, page), f"blocks {blocks} have {self.held.get(blocks[0])}, not {page}"
                self.reading.append(Reading(command, blocks, key, page))
                self.planned_stores += 1

    def _by_page(self, command: StoreCommand) -> list[tuple[int, ...]]:
        size = self._group_of(command).blocks
        assert len(command.blocks) % size == 0, "a page without some of its blocks"
        return [command.blocks[at : at + size] for at in range(0, len(command.blocks), size)]

    def _publish(self, reading: Reading) -> None:
        keys = Keys(self._group_of(reading.command).namespace, reading.key)
        self.client.store(keys, [reading.key])

    def _holding(self) -> set[str]:
        return {reading.command.request for reading in self.reading if reading.command.retains_blocks}

    # ---- loads

    def _begin(self, command: LoadCommand) -> None:
        assert command.request not in self.loading, "the request already loads"
        pages: dict[int, tuple[Page, int] | None] = {}
        for load in command.groups:
            with adopt(self.client.session, load.pages) as match:
                keys = [bytearray(32) for _ in range(len(match))]
                loaded = self.client.load(match, keys) if keys else 0
            found = [self._names[bytes(key)] for key in keys[:loaded]]
            size = self.groups[load.group - self.first].blocks
            assert len(load.blocks) % size == 0, "a page without some of its blocks"
            for at, block in enumerate(load.blocks):
                page, place = divmod(at, size)
                if not block:
                    assert not any(load.blocks[page * size : at]), "a page is loaded from a block on"
                    assert any(load.blocks[at : (page + 1) * size]), "a page is loaded into no block"
                    continue
                assert block not in pages, "two pages are loaded into one block"
                pages[block] = (found[page], place) if page < len(found) else None
                self._overwrite(block, -1)
        self.loading[command.request] = Loading(pages)

    # ---- computing

    def _compute(self, computed: Sequence[Computed]) -> None:
        """Computes all requests.

        Attention sees the results of other requests of the same step, recurrent state does not.
        """
        for one in computed:
            self._needs(one, recurrent=True)
            self._needs_uncached(one)
        for one in computed:
            self._write_attention(one)
            self._write_uncached(one)
        for one in computed:
            self._needs(one, recurrent=False)
        for one in computed:
            self._write_states(one)

    def _write_attention(self, one: Computed) -> None:
        for at, group in enumerate(self.groups):
            if not isinstance(group.kind, Recurrent):
                self._write(at, one, range(one.begins, one.ends))

    def _write_states(self, one: Computed) -> None:
        for at, group in enumerate(self.groups):
            if isinstance(group.kind, Recurrent):
                size = group.block_tokens
                whole = range((one.begins // size + 1) * size, one.ends, size) if group.has_every_page else ()
                for ends in (*whole, one.ends):
                    block = one.tables[group.number][(ends - 1) // size]
                    self._overwrite(block, at).cells = {_ENTIRE: one.tokens[:ends]}
                self._write_checkpoints(at, one)

    def _write_checkpoints(self, at: int, one: Computed) -> None:
        """Writes the states within a step. Like the kernels it skips those that vLLM has given no block."""
        number = self.groups[at].number
        for left in one.checkpoints:
            if left.group == number and (block := one.tables[number][left.place]):
                self._overwrite(block, at).cells = {_ENTIRE: one.tokens[: left.ends]}

    def _write(self, at: int, one: Computed, positions: range) -> None:
        size, table = self.groups[at].block_tokens, one.tables[self.groups[at].number]
        for position in positions:
            held = self._overwrite(table[position // size], at)
            held.cells[position % size] = one.tokens[: position + 1]

    def _needs(self, one: Computed, *, recurrent: bool) -> None:
        """Asserts that the request's blocks have the content before the computed tokens."""
        for at, group in enumerate(self.groups):
            if isinstance(group.kind, Recurrent) is not recurrent:
                continue
            size = group.block_tokens
            for position in range(group.kind.first_kept(one.begins), one.begins):
                block = one.tables[group.number][position // size]
                held = self.held.get(block)
                assert block and held is not None and held.group == at, f"{one.request}: {position} of {at} is lost"
                place = _ENTIRE if recurrent else position % size
                cell = held.cells.get(place)
                assert cell == one.tokens[: position + 1], f"{one.request}: {position} of {at} is wrong"

    def _write_uncached(self, one: Computed) -> None:
        for at, group in enumerate(self.uncached, len(self.groups)):
            for position in group.written(one):
                block, place = group.place(one, position)
                self._overwrite(block, at).cells[place] = one.tokens[: position + 1]

    def _needs_uncached(self, one: Computed) -> None:
        for at, group in enumerate(self.uncached, len(self.groups)):
            for position in group.needed(one):
                block, place = group.place(one, position)
                held = self.held.get(block)
                assert block and held is not None and held.group == at, f"{one.request}: {position} of {group} is lost"
                assert held.cells.get(place) == one.tokens[: position + 1], f"{position} of {group} is wrong"

    def _overwrite(self, block: int, group: int) -> Held:
        assert block, "block 0 is never allocated"
        assert all(block not in loading.pages for loading in self.loading.values()), "a load also writes to this block"
        held = self.held.get(block)
        if held is None or held.group != group:
            held = self.held[block] = Held(group)
        return held

    # ---- contents

    def _cells(self, page: Page, place: int) -> dict[int, Tokens]:
        """Returns the content of the block at this place in a page."""
        group = self.groups[page.group]
        if isinstance(group.kind, Recurrent):
            return {_ENTIRE: page.tokens}
        first = len(page.tokens) - group.kind.page_tokens + place * group.block_tokens
        return {at: page.tokens[: first + at + 1] for at in range(group.block_tokens)}

    def _holds(self, blocks: Sequence[int], page: Page) -> bool:
        for place, block in enumerate(blocks):
            held = self.held.get(block)
            if held is None or held.group != page.group:
                return False
            if any(held.cells.get(at) != tokens for at, tokens in self._cells(page, place).items()):
                return False
        return True
