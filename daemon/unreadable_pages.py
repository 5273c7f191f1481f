"""Finds pages on disk that a changed setting would lose: a start with it is refused, unless it has --fresh."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Final

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.schema import Config
from pagetier.shm.segments import UnfitError
from pagetier.tiers.disk_folder import OTHER_SETTINGS_REMEDY

REMEDY: Final = f"a start is refused: {OTHER_SETTINGS_REMEDY}"
_ANSWER_S: Final = 10.0  # a disk that takes longer hangs; its worker refuses such pages later


class UnreadablePagesError(UnfitError):
    """The disk tier has pages that only other settings read. They are unchanged."""


def found_at_start(config: Config) -> str:
    """Returns what unreadable_pages() says of the disk tier, "" also if the disk does not answer for ten seconds.

    The process must have no other thread yet, and no segments, since the disk is read in a forked child.
    """
    return in_child(lambda: "; ".join(all_unreadable(config)), _ANSWER_S) if config.disk.size else ""


def all_unreadable(config: Config) -> Iterator[str]:
    """Yields what unreadable_pages() says of each device that has such pages."""
    yield from filter(None, (unreadable_pages(device, config.arena.frame_size) for device in config.disk.devices))


def unreadable_pages(device: DeviceOptions, frame_bytes: int) -> str:
    """Returns that a device has pages that only other settings read; "" if not, or if this user cannot see them."""
    from pagetier.tiers.disk.other_settings import pages_of_other_settings

    why = pages_of_other_settings(device.path, device.store, frame_bytes)
    return f"the disk tier in {why}" if why else ""


def in_child(call: Callable[[], str], seconds: float) -> str:
    """Returns what a function returns in a forked child; "" if it fails or takes longer, since a disk may hang."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        _answer(writer, call)
    os.close(writer)
    with open(reader, "rb") as answer:  # noqa: PTH123  it is no path
        in_time = bool(select.select([answer], [], [], seconds)[0])
        said = answer.read() if in_time else b""
    os.kill(child, signal.SIGKILL)  # it has answered, or waits for a disk and ends when that answers
    os.waitpid(child, 0 if in_time else os.WNOHANG)
    return said.decode()


def _answer(writer: int, call: Callable[[], str]) -> None:
    """Ends this process, after it has written what the function returns."""
    try:
        os.write(writer, call().encode())
    finally:
        os._exit(0)
