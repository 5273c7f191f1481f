"""Reserves the pages of one request prompt by prompt, so that the index knows which page is before which."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pagetier.shm._core import KEY_BYTES, ChainKind, Owner
from pagetier.shm.protocol import Reserve

_SIZE_BYTES = 8


class Chain(msgspec.Struct, frozen=True):
    """Consecutive pages of one prompt.

    Attributes:
        begin: The first page in the request.
        end: The page after the last one.
        kind: How the pages depend on each other.
        parent: The key of the page before the first one; empty if there is none.
    """

    begin: int
    end: int
    kind: ChainKind
    parent: bytes = b""


def chains_of(request: Reserve, pages: int) -> Iterator[Chain]:
    """Yields the chains among the first `pages` pages of a request."""
    if not request.chains:
        yield Chain(0, pages, ChainKind.UNKNOWN if request.chains is None else ChainKind.NONE)
        return
    ends = [begin for begin, _ in request.chains[1:]] + [pages]
    for (begin, parent), end in zip(request.chains, ends, strict=True):
        if begin < min(end, pages):
            yield Chain(begin, min(end, pages), ChainKind.PROMPT, parent)


def wrong_chains(request: Reserve) -> str:
    """Returns why the chains of a request are invalid, "" if they are valid."""
    chains, pages = request.chains or ((0, b""),), len(request.keys) // KEY_BYTES
    begins = [begin for begin, _ in chains]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"prompts that begin at the pages {begins} are not a division of {pages} pages"
    if any(len(parent) not in (0, KEY_BYTES) for _, parent in chains):
        return "the key of the page before a prompt has another length than a key"
    return ""


def reserve_chains(
    owner: Owner, slot: int, space: int, ttl_ns: int, request: Reserve, pages: int
) -> tuple[bytes, bytes, bytes]:
    """Reserves the first `pages` pages of a valid request. Returns outcomes, entries and serials as in Reserved."""
    answers = [
        owner.reserve(
            slot,
            space,
            request.part,
            request.parts,
            ttl_ns,
            request.keys[chain.begin * KEY_BYTES : chain.end * KEY_BYTES],
            request.sizes[chain.begin * _SIZE_BYTES : chain.end * _SIZE_BYTES],
            request.division,
            chain.kind,
            chain.parent,
        )
        for chain in chains_of(request, pages)
    ]
    if len(answers) == 1:
        return answers[0]
    outcomes, entries, serials = zip(*answers, strict=True) if answers else ((), (), ())
    return b"".join(outcomes), b"".join(entries), b"".join(serials)
