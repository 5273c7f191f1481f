"""Tries a fleet's store for `pagetier doctor`, in a process of its own: `python -m pagetier.tiers.fleet.trial`.

TrialOptions come by the standard input, and a TrialResult goes to the standard output, both as JSON.
"""

from __future__ import annotations

import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.page_messages import Space
from pagetier.tiers.base import Incoming, Outgoing, PageName, ReadOutcome, TierError
from pagetier.tiers.fleet.object_fleet import ObjectFleet
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions

_T = TypeVar("_T")
_PAGE_BYTES: Final = 8 << 20
_PAGES_ASKED: Final = 64
_QUESTIONS: Final = 5
BUFFERS: Final = 2 * _PAGE_BYTES


class TrialOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to try.

    Attributes:
        fleet: How the store is reached.
        writes: Whether to write a page, read it and remove it, after the questions.
    """

    fleet: FleetOptions
    writes: bool


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a store answered.

    Attributes:
        failure: What an administrator must change; "" if the store can be used. Then the others count.
        asked_s: The median time of a question for 64 pages.
        page_bytes: The size of the page that was written and read; 0 if none was.
        wrote_s: The time to write it.
        read_s: The time to read and verify it.
        left: Why the page could not be removed, or "".
    """

    failure: str = ""
    asked_s: float = 0.0
    page_bytes: int = 0
    wrote_s: float = 0.0
    read_s: float = 0.0
    left: str = ""


def try_store(options: TrialOptions) -> TrialResult:
    """Asks a store, and writes, reads and removes one page of its own. Raises TierError."""
    buffers = min(BUFFERS, options.fleet.buffers)
    fleet = open_fleet(msgspec.structs.replace(options.fleet, buffers=buffers))
    space = Space(secrets.token_bytes(KEY_BYTES), "trial", 16)
    asked_s = statistics.median(_timed(lambda: _ask(fleet, space))[0] for _ in range(_QUESTIONS))
    if not options.writes:
        return TrialResult(asked_s=asked_s)
    page = _page(space, min(_PAGE_BYTES, buffers // 2))
    try:
        wrote_s, _ = _timed(lambda: _write(fleet, page))
        read_s, _ = _timed(lambda: _read(fleet, page))
    finally:
        left = _remove(fleet, PageName(space.digest, page.key))
    return TrialResult(asked_s=asked_s, page_bytes=page.size, wrote_s=wrote_s, read_s=read_s, left=left)


def _timed(function: Callable[[], _T]) -> tuple[float, _T]:
    began = time.perf_counter()
    result = function()
    return time.perf_counter() - began, result


def _ask(fleet: ObjectFleet, space: Space) -> None:
    fleet.locate([PageName(space.digest, secrets.token_bytes(KEY_BYTES)) for _ in range(_PAGES_ASKED)])


def _page(space: Space, size: int) -> Outgoing:
    return Outgoing(secrets.token_bytes(KEY_BYTES), space, size, 0, [memoryview(bytearray(secrets.token_bytes(size)))])


def _write(fleet: ObjectFleet, page: Outgoing) -> None:
    written = fleet.write([], [page])
    if not written.stored[0]:
        raise TierError(f"a page cannot be written: {written.reasons[0]}")


def _read(fleet: ObjectFleet, page: Outgoing) -> None:
    frame = memoryview(bytearray(page.size))
    result = fleet.read(Incoming(page.key, page.size, [frame], page.space.digest))
    if result.outcome is ReadOutcome.FAILED:
        raise TierError(f"a page that was just written cannot be read: {result.reason}")
    if result.outcome is not ReadOutcome.EXACT or frame != page.frames[0]:
        raise TierError(f"a page that was just written came back {result.outcome.name.lower()}: {result.reason}")


def _remove(fleet: ObjectFleet, page: PageName) -> str:
    try:
        fleet.remove(page)
    except TierError as error:
        return str(error)
    return ""


def main() -> None:
    """Writes the result of a trial, and ends without waiting for calls of the store that have not returned."""
    options = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialOptions)
    output = os.dup(1)
    os.dup2(2, 1)  # a store's library may print
    try:
        result = try_store(options)
    except TierError as error:
        result = TrialResult(failure=str(error))
    os.write(output, msgspec.json.encode(result))
    os._exit(0)


if __name__ == "__main__":
    main()
