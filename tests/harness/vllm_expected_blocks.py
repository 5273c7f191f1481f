"""What each block of an engine's cache holds, token by token, while a worker carries out orders and computes.

It knows nothing of how orders are made. A store may read its blocks as late as the orders allow, a load may write its
blocks from its order to its end: whatever is read or computed from another content than the right one fails the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pagetier.client import Client, Keys
from pagetier.client.engines.vllm.messages import LoadOrder, Orders, StoreOrder
from pagetier.client.engines.vllm.request_state import PagedGroup
from pagetier.client.groups import Recurrent

Tokens = tuple[int, ...]
_ENTIRE = -1  # the place of a recurrent state in its block


class Page(NamedTuple):
    """Of a group: the one that ends with these tokens."""

    group: int
    tokens: Tokens


class Computed(NamedTuple):
    """One request in one step: tokens [begins, ends) of `tokens`, with the blocks of each group."""

    request: str
    tokens: Tokens
    begins: int
    ends: int
    tables: Sequence[Sequence[int]]


@dataclass
class Held:
    """What a block holds of a group: at each place the tokens up to there, which determine it."""

    group: int
    cells: dict[int, Tokens] = field(default_factory=dict)


class Reading(NamedTuple):
    """A page that is ordered to be stored, and is not yet."""

    order: StoreOrder
    block: int
    key: bytes
    page: Page


@dataclass
class Loading:
    """pages: of each block; None for one that could not be had."""

    pages: dict[int, Page | None]


class TrueWorker:
    """Stores and loads through a client of its own. Pages in the daemon are as long as their key, which they hold."""

    def __init__(self, client: Client, groups: Sequence[PagedGroup]) -> None:
        self.client, self.groups = client, groups
        self.held: dict[int, Held] = {}
        self.reading: list[Reading] = []
        self.loading: dict[str, Loading] = {}
        self.ordered = 0
        self._names: dict[bytes, Page] = {}

    def know(self, hashes: Sequence[bytes], tokens: Tokens) -> None:
        """What vLLM says the hashes of these tokens are."""
        for at, group in enumerate(self.groups):
            whole = len(hashes) // group.hashes
            keys = group.keys([hashes[(page + 1) * group.hashes - 1] for page in range(whole)])
            for page, key in enumerate(keys):
                told = Page(at, tokens[: (page + 1) * group.kind.page_tokens])
                assert self._names.setdefault(key, told) == told, "one hash of two prompts"

    def step(
        self,
        orders: Orders,
        zeroed: Iterable[int],
        computed: Sequence[Computed],
        copies: Iterable[tuple[int, int]] = (),
    ) -> None:
        """As the worker does: room is made, then loads begin, all is computed, and stores begin."""
        self._make_room(orders.written)
        for block in zeroed:
            self._overwrite(block, -1)
        for source, target in copies:
            held = self.held[source]
            self._overwrite(target, held.group).cells = dict(held.cells)
        for load in orders.loads:
            self._begin(load)
        self._compute(computed)
        for store in orders.stores:
            self._store(store)
        for reading in self.reading:
            assert self._holds(reading.block, reading.page), f"{reading} would be read after it was overwritten"

    def end_stores(self, which: slice) -> set[str]:
        """Some stores are through. Returns requests that hold no blocks for others any more."""
        ended, holding = self.reading[which], self._holding()
        for reading in ended:
            self._publish(reading)
        self.reading = [reading for reading in self.reading if reading not in ended]
        return holding - self._holding()

    def end_load(self, request: str, *, fails: bool) -> bool:
        """Whether all of it is there."""
        loading = self.loading.pop(request)
        whole = not fails and None not in loading.pages.values()
        for block, page in loading.pages.items():
            self._overwrite(block, -1)
            if page is not None and not fails:
                self.held[block] = Held(page.group, self._cells(page))
        return whole

    # ---- stores

    def _make_room(self, written: frozenset[int]) -> None:
        for reading in self.reading:
            if reading.block in written:
                assert not reading.order.held, "blocks that are held are given to another"
                self._publish(reading)
        self.reading = [reading for reading in self.reading if reading.block not in written]

    def _store(self, order: StoreOrder) -> None:
        keys = Keys(self.groups[order.group].namespace, order.keys)
        for block, key in zip(order.blocks, keys, strict=True):
            if block:
                page = self._names[key]
                assert page.group == order.group, "a page of another group"
                assert self._holds(block, page), f"block {block} holds {self.held.get(block)}, not {page}"
                self.reading.append(Reading(order, block, key, page))
                self.ordered += 1

    def _publish(self, reading: Reading) -> None:
        keys = Keys(self.groups[reading.order.group].namespace, reading.key)
        self.client.store(keys, [reading.key])

    def _holding(self) -> set[str]:
        return {reading.order.request for reading in self.reading if reading.order.held}

    # ---- loads

    def _begin(self, order: LoadOrder) -> None:
        assert order.request not in self.loading, "one request loads twice"
        pages: dict[int, Page | None] = {}
        for load in order.groups:
            with self.client.adopt(load.pages) as match:
                keys = [bytearray(32) for _ in range(len(match))]
                loaded = self.client.load(match, keys) if keys else 0
            found = [self._names[bytes(key)] for key in keys[:loaded]]
            for at, block in enumerate(load.blocks):
                assert block and block not in pages, "a block for two pages"
                pages[block] = found[at] if at < len(found) else None
                self._overwrite(block, -1)
        self.loading[order.request] = Loading(pages)

    # ---- computing

    def _compute(self, computed: Sequence[Computed]) -> None:
        """Attention sees what other requests compute in the same step, recurrent state does not."""
        for one in computed:
            self._needs(one, recurrent=True)
        for one in computed:
            self._write_attention(one)
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
                block = one.tables[at][(one.ends - 1) // group.kind.page_tokens]
                self._overwrite(block, at).cells = {_ENTIRE: one.tokens[: one.ends]}

    def _write(self, at: int, one: Computed, positions: range) -> None:
        size = self.groups[at].kind.page_tokens
        for position in positions:
            held = self._overwrite(one.tables[at][position // size], at)
            held.cells[position % size] = one.tokens[: position + 1]

    def _needs(self, one: Computed, *, recurrent: bool) -> None:
        """What comes before must be in the request's blocks."""
        for at, group in enumerate(self.groups):
            if isinstance(group.kind, Recurrent) is not recurrent:
                continue
            size = group.kind.page_tokens
            for position in range(max(0, one.begins - group.kind.needs), one.begins):
                block = one.tables[at][position // size]
                held = self.held.get(block)
                assert block and held is not None and held.group == at, f"{one.request}: {position} of {at} is lost"
                place = _ENTIRE if recurrent else position % size
                cell = held.cells.get(place)
                assert cell == one.tokens[: position + 1], f"{one.request}: {position} of {at} is wrong"

    def _overwrite(self, block: int, group: int) -> Held:
        assert block, "block 0 is nobody's"
        assert all(block not in loading.pages for loading in self.loading.values()), "a load writes there, too"
        held = self.held.get(block)
        if held is None or held.group != group:
            held = self.held[block] = Held(group)
        return held

    # ---- contents

    def _cells(self, page: Page) -> dict[int, Tokens]:
        kind = self.groups[page.group].kind
        if isinstance(kind, Recurrent):
            return {_ENTIRE: page.tokens}
        first = len(page.tokens) - kind.page_tokens
        return {at: page.tokens[: first + at + 1] for at in range(kind.page_tokens)}

    def _holds(self, block: int, page: Page) -> bool:
        held = self.held.get(block)
        if held is None or held.group != page.group:
            return False
        return all(held.cells.get(at) == tokens for at, tokens in self._cells(page).items())
