"""Reserves the pages of one request and says which page is before which in its prompt."""

from __future__ import annotations

from array import array

from pagetier.daemon.common.namespaces import wrong_space
from pagetier.daemon.index.hint_requests import nanoseconds
from pagetier.shm._core import KEY_BYTES, PARTS, Owner, PromptKind
from pagetier.shm.protocol import Prompt, Reserve

_U32 = 1 << 32
_PARENT_BYTES = {0, KEY_BYTES}
_NO_PARENT = bytes(KEY_BYTES)
_WHOLE = (Prompt(0),)
_MOST_DEPTH = (1 << 24) - 1


def wrong_request(request: Reserve) -> str:
    """Returns why a request is invalid, "" if it is valid."""
    pages, rest = divmod(len(request.keys), KEY_BYTES)
    if rest:
        return f"{len(request.keys)} bytes are not a whole number of keys"
    if len(request.sizes) != 8 * pages:
        return f"{len(request.sizes)} bytes of sizes for {pages} pages"
    if not 1 <= request.parts <= PARTS or not 0 <= request.part < request.parts:
        return f"part {request.part} of {request.parts} is invalid: a page has at most {PARTS} parts"
    if not 0 <= request.division < _U32:
        return f"division {request.division} is invalid: it is a u32"
    return wrong_prompts(request) or wrong_space(request.space)


def wrong_prompts(request: Reserve) -> str:
    """Returns why the prompts of a request are invalid, "" if they are valid."""
    prompts, pages = request.prompts or _WHOLE, len(request.keys) // KEY_BYTES
    if len(prompts) == 1 and not prompts[0].begin and not prompts[0].before:
        return ""
    begins = [prompt.begin for prompt in prompts]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"the begins of {len(begins)} prompts are not a division of {pages} pages"
    if not {len(prompt.before) for prompt in prompts} <= _PARENT_BYTES:
        return "the key of the page before a prompt has another length than a key"
    return ""


def reserve_prompts(
    owner: Owner, slot: int, space: int, ttl_ns: int, request: Reserve, pages: int
) -> tuple[bytes, bytes, bytes]:
    """Reserves the first `pages` pages of a valid request. Returns outcomes, entries and serials as in Reserved."""
    prompts = request.prompts or _WHOLE
    if pages * KEY_BYTES < len(request.keys):
        prompts = tuple(prompt for prompt in prompts if prompt.begin < pages or not prompt.begin)
    return owner.reserve(
        slot,
        space,
        request.part,
        request.parts,
        ttl_ns,
        request.keys,
        request.sizes,
        request.division,
        _kind_of(request),
        array("I", [prompt.begin for prompt in prompts]),
        b"".join(prompt.before or _NO_PARENT for prompt in prompts),
        array("I", [min(max(prompt.depth, -1), _MOST_DEPTH) + 1 for prompt in prompts]),
        request.hint,
        nanoseconds(request.hint_ttl),
        len(request.keys) // KEY_BYTES - pages,
    )


def _kind_of(request: Reserve) -> PromptKind:
    if request.prompts is None:
        return PromptKind.UNKNOWN
    return PromptKind.KNOWN if request.prompts else PromptKind.NONE
