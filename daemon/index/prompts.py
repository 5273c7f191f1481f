"""Checks a request for a reservation, and how it divides its pages into prompts."""

from __future__ import annotations

from pagetier.daemon.common.namespaces import wrong_space
from pagetier.shm._core import KEY_BYTES, PARTS
from pagetier.shm.page_rows import PAGE_REQUESTS
from pagetier.shm.protocol import Prompt, Reserve

_U32 = 1 << 32
_PARENT_BYTES = {0, KEY_BYTES}
_WHOLE = (Prompt(0),)


def wrong_request(request: Reserve) -> str:
    """Returns why a request is invalid, "" if it is valid."""
    if not PAGE_REQUESTS.is_whole(request.pages):
        return f"{len(request.pages)} bytes are not a whole number of pages"
    if not 1 <= request.parts <= PARTS or not 0 <= request.part < request.parts:
        return f"part {request.part} of {request.parts} is invalid: a page has at most {PARTS} parts"
    if not 0 <= request.division < _U32:
        return f"division {request.division} is invalid: it is a u32"
    return wrong_prompts(request) or wrong_space(request.space)


def wrong_prompts(request: Reserve) -> str:
    """Returns why the prompts of a request are invalid, "" if they are valid."""
    prompts, pages = request.prompts or _WHOLE, PAGE_REQUESTS.count(request.pages)
    if len(prompts) == 1 and not prompts[0].begin and not prompts[0].before:
        return ""
    begins = [prompt.begin for prompt in prompts]
    if begins[0] or begins != sorted(set(begins)) or begins[-1] > max(0, pages - 1):
        return f"the begins of {len(begins)} prompts are not a division of {pages} pages"
    if not {len(prompt.before) for prompt in prompts} <= _PARENT_BYTES:
        return "the key of the page before a prompt has another length than a key"
    return ""
