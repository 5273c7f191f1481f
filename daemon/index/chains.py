"""Reserves the pages of one request and says which page is before which in its prompt."""

from __future__ import annotations

from array import array

from pagetier.shm._core import KEY_BYTES, ChainKind, Owner
from pagetier.shm.protocol import Prompt, Reserve

_SIZE_BYTES = 8
_NO_PARENT = bytes(KEY_BYTES)
_WHOLE = (Prompt(0),)
_MOST_DEPTH = (1 << 24) - 1


def wrong_chains(request: Reserve) -> str:
    """Returns why the chains of a request are invalid, "" if they are valid."""
    chains, pages = request.chains or _WHOLE, len(request.keys) // KEY_BYTES
    begins = [prompt.begin for prompt in chains]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"the begins of {len(begins)} prompts are not a division of {pages} pages"
    if any(len(prompt.before) not in (0, KEY_BYTES) for prompt in chains):
        return "the key of the page before a prompt has another length than a key"
    return ""


def reserve_chains(
    owner: Owner, slot: int, space: int, ttl_ns: int, request: Reserve, pages: int
) -> tuple[bytes, bytes, bytes]:
    """Reserves the first `pages` pages of a valid request. Returns outcomes, entries and serials as in Reserved."""
    chains = [prompt for prompt in request.chains or _WHOLE if prompt.begin < pages or not prompt.begin]
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
        array("I", [prompt.begin for prompt in chains]),
        b"".join(prompt.before or _NO_PARENT for prompt in chains),
        array("I", [min(max(prompt.depth, -1), _MOST_DEPTH) + 1 for prompt in chains]),
    )


def _kind_of(request: Reserve) -> ChainKind:
    if request.chains is None:
        return ChainKind.UNKNOWN
    return ChainKind.PROMPT if request.chains else ChainKind.NONE
