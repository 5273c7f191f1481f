"""Defines the commands of the scheduler to the workers: pages to load into blocks, and blocks to store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from pagetier.client.match import MatchHandle
from pagetier.shm._core import KEY_BYTES
from pagetier.shm.protocol import Prompt

_BATCH_BYTES: Final = 64 * KEY_BYTES  # keys of pages of several requests that are stored together


class GroupLoad(msgspec.Struct, frozen=True):
    """Pages of one group to load.

    Attributes:
        group: The index of the group.
        pages: The pages.
        blocks: The blocks of each page, 0 for those at its begin that are not written: vLLM has them, or needs none.
    """

    group: int
    pages: MatchHandle
    blocks: tuple[int, ...]


class LoadCommand(msgspec.Struct, frozen=True):
    """The pages of one request to load. If one of them fails, the whole load fails."""

    request: str
    groups: tuple[GroupLoad, ...]

    @property
    def blocks(self) -> frozenset[int]:
        """The blocks that are written."""
        return frozenset(block for group in self.groups for block in group.blocks) - {0}


class StoreCommand(msgspec.Struct, frozen=True):
    """Pages of one group to store. They are complete once this step is computed.

    Attributes:
        request: The ID of the request.
        group: The index of the group.
        first: The index of the first page in the request.
        keys: 32 bytes for each page.
        blocks: The blocks of each page; a page with block 0 is skipped.
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

    @property
    def pages(self) -> int:
        """The number of pages."""
        return len(self.keys) // KEY_BYTES

    def __repr__(self) -> str:
        return f"<StoreCommand {self.request}: {self.pages} pages from {self.first} on, group {self.group}>"


def prompts_of(commands: Sequence[StoreCommand]) -> tuple[Prompt, ...]:
    """Returns `Keys.prompts` of the pages of all commands, one after the other."""
    prompts, begin = [], 0
    for command in commands:
        if command.before is not None:
            prompts.append(Prompt(begin, command.before, command.first))
        begin += len(command.keys) // KEY_BYTES
    return tuple(prompts)


def batches_of(stores: Iterable[StoreCommand]) -> Iterator[list[StoreCommand]]:
    """Yields commands that are stored together, because a store costs as much as the copies of many pages.

    A batch ends when it has enough pages, so that a store that is cancelled loses few of them.
    """
    batches: dict[tuple[int, str], list[StoreCommand]] = {}
    sizes: dict[tuple[int, str], int] = {}
    for command in stores:
        group = command.group, command.salt
        batches.setdefault(group, []).append(command)
        size = sizes[group] = sizes.get(group, 0) + len(command.keys)
        if size >= _BATCH_BYTES:
            del sizes[group]
            yield batches.pop(group)
    yield from batches.values()


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


NO_COMMANDS: Final = StepCommands()


class Finished(msgspec.Struct, frozen=True):
    """What has ended since the last call.

    Attributes:
        stored: Requests whose last stores have ended.
        loaded: Requests whose loads have ended, successfully or not.
        failed: Those of them whose loads failed.
        blocks: The blocks of the failed loads.
        copied: The seconds that the copies of the other loads took.
    """

    stored: frozenset[str]
    loaded: frozenset[str]
    failed: frozenset[str]
    blocks: frozenset[int]
    copied: Mapping[str, float] = {}


NOTHING_FINISHED: Final = Finished(frozenset(), frozenset(), frozenset(), frozenset())
