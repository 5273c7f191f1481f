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
    return RunningDaemon(arena, frame, "--evict-low=0", "--evict-high=0", *more)


def use(client: Client, keys: Keys) -> StoreResult:
    """Matches a prompt and stores it, without bytes. Returns what became of its pages."""
    client.match(keys).release()
    return client.reserve(keys, PAGE).publish()


def use_all_that_return(client: Client) -> None:
    """Uses the prompts that return."""
    for keys in _RETURNING:
        use(client, keys)


def until_left_out(client: Client) -> tuple[Keys, StoreResult]:
    """Uses prompts until pages of one that is new are left out. Returns that one, and what became of its pages."""
    for turn in range(_ROUNDS):
        use_all_that_return(client)
        new = prompt(1000 + turn, NEW_PAGES)
        result = use(client, new)
        if result.left_out:
            return new, result
    raise AssertionError(f"no page was left out in {_ROUNDS} rounds")
