"""Reserves the pages of one request and says which page is before which in its prompt."""

from __future__ import annotations

from array import array

from pagetier.shm._core import KEY_BYTES, ChainKind, Owner
from pagetier.shm.protocol import Reserve

_SIZE_BYTES = 8
_NO_PARENT = bytes(KEY_BYTES)


def wrong_chains(request: Reserve) -> str:
    """Returns why the chains of a request are invalid, "" if they are valid."""
    chains, pages = request.chains or ((0, b""),), len(request.keys) // KEY_BYTES
    begins = [begin for begin, _ in chains]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"the begins of {len(begins)} prompts are not a division of {pages} pages"
    if any(len(parent) not in (0, KEY_BYTES) for _, parent in chains):
        return "the key of the page before a prompt has another length than a key"
    return ""


def reserve_chains(
    owner: Owner, slot: int, space: int, ttl_ns: int, request: Reserve, pages: int
) -> tuple[bytes, bytes, bytes]:
    """Reserves the first `pages` pages of a valid request. Returns outcomes, entries and serials as in Reserved."""
    chains = [(begin, parent) for begin, parent in request.chains or ((0, b""),) if begin < pages or not begin]
    return owner.reserve(
        slot,
        space,
        request.part,
        request.parts,
        ttl_ns,
        request.keys[: pages * KEY_BYTES],
        request.sizes[: pages * _SIZE_BYTES],
        request.division,
        _kind_of(request),
        array("I", [begin for begin, _ in chains]),
        b"".join(parent or _NO_PARENT for _, parent in chains),
    )


def _kind_of(request: Reserve) -> ChainKind:
    if request.chains is None:
        return ChainKind.UNKNOWN
    return ChainKind.PROMPT if request.chains else ChainKind.NONE
