"""Brings a daemon to leave out pages: prompts that return fill its memory, beside others that never do."""

from __future__ import annotations

from typing import Final

from keyed_pages import prompt
from pagetier.client import Client, Keys, StoreResult
from running_daemon import RunningDaemon

PAGE: Final = 4096
NEW_PAGES: Final = 30
"""The pages of prompts that never return."""
_FRAMES: Final = 64
_RETURNING: Final = [prompt(number, 10) for number in range(8)]  # more than fit
_ROUNDS: Final = 400  # a dozen are enough


def small_daemon(*more: str, frame: str = "4KiB") -> RunningDaemon:
    """Returns a daemon for 64 pages of at most a frame, which evicts none ahead of need."""
    arena = f"{_FRAMES * int(frame[:-3])}{frame[-3:]}"
    return RunningDaemon(arena, frame, "--set=evict.free=0", *more)


def use(client: Client, keys: Keys) -> StoreResult:
    """Matches a prompt and stores it, without bytes. Returns what became of its pages."""
    client.match(keys).release()
    return client.reserve(keys, PAGE).publish()


def use_all_that_return(client: Client) -> int:
    """Uses the prompts that return. Returns how many of their pages were left out."""
    return sum(use(client, keys).left_out for keys in _RETURNING)


def until_left_out(client: Client) -> tuple[Keys, StoreResult, int]:
    """Uses prompts until pages of one that is new are left out.

    Returns:
        That prompt, what became of its pages, and how many pages of all prompts were left out.
    """
    total = 0
    for turn in range(_ROUNDS):
        total += use_all_that_return(client)
        new = prompt(1000 + turn, NEW_PAGES)
        result = use(client, new)
        if result.left_out:
            return new, result, total + result.left_out
    raise AssertionError(f"no page was left out in {_ROUNDS} rounds")
