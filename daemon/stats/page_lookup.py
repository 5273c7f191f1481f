"""Says how far a prompt is here: which of its pages are in memory or on disk. Reads shared memory, sends no message.

Nothing is pinned, counted or marked as used, so a lookup never changes which page is evicted next.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import Final

import msgspec

from pagetier.daemon.common.namespaces import means, with_pages
from pagetier.shm._core import NamespaceRecord, Observer, TierFlag
from pagetier.shm.page_rows import PAGE_KEYS

_MEMORY: Final = int(TierFlag.MEMORY)
_TOKEN_BYTES: Final = 4


class UnknownNamespaceError(Exception):
    """A text names no namespace, or several; the message says which there are."""


class FoundPages(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pages of a prompt are now.

    Attributes:
        pages: Pages that were asked for.
        prefix: Pages from the first one up to the first that is in no tier.
        prefix_tokens: Tokens of these pages.
        prefix_memory: Pages from the first one up to the first that is not in memory.
        memory: Pages in memory.
        disk: Pages on disk, including those that are in memory too.
        disk_only: Pages on disk that are not in memory.
    """

    pages: int
    prefix: int
    prefix_tokens: int
    prefix_memory: int
    memory: int
    disk: int
    disk_only: int


def look_up(observer: Observer, keys: bytes, page_tokens: int) -> FoundPages:
    """Returns where the pages with these keys are, head first."""
    return found_pages(observer.locate(keys), page_tokens)


def found_pages(tiers: bytes, page_tokens: int) -> FoundPages:
    """Returns where pages are whose tiers (TierFlag) an observer has located, head first."""
    prefix = tiers.find(0) if 0 in tiers else len(tiers)
    memory = sum(bool(each & _MEMORY) for each in tiers)
    return FoundPages(
        pages=len(tiers),
        prefix=prefix,
        prefix_tokens=prefix * page_tokens,
        prefix_memory=sum(1 for _ in takewhile(lambda each: each & _MEMORY, tiers)),
        memory=memory,
        disk=sum(bool(each & TierFlag.DISK) for each in tiers),
        disk_only=len(tiers) - tiers.count(0) - memory,
    )


def lookup_note(observer: Observer, space: NamespaceRecord, keys: bytes) -> str:
    """Returns why no page was found, or found in another namespace; "" if there is nothing to say.

    A page that is found is looked for among those of each namespace, which walks the index.
    """
    if not keys:
        return f"no page is named: a page of {space.name} has {space.page_tokens} tokens"
    at = next((at for at, tier in enumerate(observer.locate(keys)) if tier), None)
    if at is None:
        return f"no page has these keys: are they of another namespace than {space.name}, or of an engine such as vLLM?"
    key = PAGE_KEYS.part(keys, at, at + 1)
    owner = next((each for each in (space, *observer.spaces()) if key in observer.pages(each.number)), space)
    return "" if owner.number == space.number else f"these pages are of the namespace {owner.name}, not {space.name}"


def namespace_named(spaces: Sequence[NamespaceRecord], wanted: str) -> NamespaceRecord:
    """Returns the namespace with this label, model, or digest (at least 8 digits).

    Raises:
        UnknownNamespaceError: There is none, or more than one.
    """
    found = [space for space in spaces if means(wanted, space.name, space.digest)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(f"{space.name} ({space.digest.hex()[:16]})" for space in found)
        raise UnknownNamespaceError(f'"{wanted}" means {len(found)} namespaces, name one by its digest: {names}')
    names = ", ".join(space.name for space in with_pages(spaces))
    raise UnknownNamespaceError(
        f'no namespace is "{wanted}"; {f"there are: {names}" if names else "there are none yet"}'
    )


def keys_of_tokens(space: NamespaceRecord, tokens: Sequence[int]) -> bytes:
    """Returns the keys that pagetier's own chain gives to all full pages of these tokens, each below 2**32.

    Engines that hash their blocks themselves, such as vLLM, use other keys.
    """
    return b"".join(_chain(space.digest, array("I", tokens).tobytes(), space.page_tokens * _TOKEN_BYTES))


def _chain(previous: bytes, tokens: bytes, page_bytes: int) -> Iterator[bytes]:
    for start in range(0, len(tokens) - page_bytes + 1, page_bytes):
        previous = sha256(previous + tokens[start : start + page_bytes]).digest()
        yield previous
