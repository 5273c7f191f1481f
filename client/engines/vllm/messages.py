"""Defines the commands of the scheduler to the workers: pages to load into blocks, and blocks to store."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from pagetier.client.match import MatchHandle
from pagetier.shm.protocol import Prompt


class GroupLoad(msgspec.Struct, frozen=True):
    """Pages of one group to load, one for each block."""

    group: int
    pages: MatchHandle
    blocks: tuple[int, ...]


class LoadCommand(msgspec.Struct, frozen=True):
    """The pages of one request to load. If one of them fails, the whole load fails."""

    request: str
    groups: tuple[GroupLoad, ...]


class StoreCommand(msgspec.Struct, frozen=True):
    """Pages of one group to store. They are complete once this step is computed.

    Attributes:
        request: The ID of the request.
        group: The index of the group.
        first: The index of the first page in the request.
        keys: 32 bytes for each page.
        blocks: The block of each page; a page with block 0 is skipped.
        salt: The salt of the namespace in which the index records these pages. It is not shown in a repr, because it
            separates tenants.
        retains_blocks: Whether the request keeps its blocks until this store has ended. If not, they may be reused from
            the next step on.
        before: The key of the page before the first one, b"" if there is none; None if a page is useful on its own.
    """

    request: str
    group: int
    first: int
    keys: bytes
    blocks: tuple[int, ...]
    salt: str
    retains_blocks: bool = False
    before: bytes | None = None

    def __repr__(self) -> str:
        return f"<StoreCommand {self.request}: {len(self.blocks)} pages from {self.first} on, group {self.group}>"


def prompts_of(commands: Sequence[StoreCommand]) -> tuple[Prompt, ...]:
    """Returns `Keys.prompts` of the pages of all commands, one after the other."""
    begins = accumulate((len(command.blocks) for command in commands), initial=0)
    pairs = zip(begins, commands, strict=False)
    return tuple(Prompt(begin, command.before, command.first) for begin, command in pairs if command.before is not None)


class StepCommands(msgspec.Struct, frozen=True):
    """The commands of one step.

    Attributes:
        loads: Requests to load.
        stores: Pages to store.
        written: Blocks that get new content in this step.
    """

    loads: tuple[LoadCommand, ...] = ()
    stores: tuple[StoreCommand, ...] = ()
    written: frozenset[int] = frozenset()
