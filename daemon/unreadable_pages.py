"""Finds pages on disk that a changed setting would lose: a start with it is refused, unless it has --fresh."""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.config.schema import Config
from pagetier.shm.segments import UnfitError
from pagetier.shm.units import counted, spell_size
from pagetier.tiers.capacity import slot_bytes_of

if TYPE_CHECKING:
    import lmdb

    from pagetier.tiers.disk.recovery import State

REMEDY: Final = (
    "a start is refused: set the former value to keep these pages, or start once with --fresh to discard them and those"
    " in memory (a service: stop it, empty that folder, start it)"
)
_COMPRESSED_FORMAT: Final = 3  # tiers.disk.file_format names it, too, which the daemon's process does not import
_ANSWER_S: Final = 10.0  # a disk that takes longer hangs


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
    from pagetier.tiers.disk.recovery import read_state

    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        state = read_state(device.path)
        differ = [] if state is None else list(_differences(state, device, frame_bytes))
        if differ and (pages := _pages_in(device.path)):
            have, wanted = (", ".join(each) for each in zip(*differ, strict=True))
            return f"the disk tier in {device.path} has {pages} with {have}, not {wanted}"
    return ""


def _differences(state: State, device: DeviceOptions, frame_bytes: int) -> Iterator[tuple[str, str]]:
    """Yields what a folder was made with, where it is not what the configuration asks for, and the setting of that."""
    unit, unit_bytes = "arena.frame_size =", frame_bytes
    if state.format == _COMPRESSED_FORMAT:
        unit, unit_bytes = "slots of", slot_bytes_of(frame_bytes)
    if state.store != device.store:
        yield f"disk.store = {state.store}", f"disk.store = {device.store}"
    if state.frame_bytes != unit_bytes:  # another compression is no reason: pages in memory survive it
        yield f"{unit} {spell_size(state.frame_bytes)}", f"arena.frame_size = {spell_size(frame_bytes)}"


def _pages_in(folder: Path) -> str:
    """Returns the pages in the environments of a folder in words; "" if there are none. Raises OSError."""
    from pagetier.tiers.disk.file_system import DATA, numbered_folders

    counts = [_count(path / DATA) for path in numbered_folders(folder) if _is_ours(path / DATA)]
    if None in counts:
        return "pages that cannot be counted"
    pages = sum(count or 0 for count in counts)
    return counted(pages, "page") if pages else ""


def _is_ours(data: Path) -> bool:
    """Returns whether a file may be opened. What another user made is refused when the tier is opened."""
    with suppress(FileNotFoundError):
        found = data.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid())
    return False


def _count(data: Path) -> int | None:
    """Returns how many pages there are in an environment; None if it cannot be read."""
    import lmdb  # only where a setting was changed

    from pagetier.tiers.disk.recovery import shortened

    try:
        if shortened(data.parent):
            return 0
        with _read_only(data) as env, env.begin() as txn:
            return int(txn.stat(env.open_db(b"pages", txn, create=False))["entries"])
    except (PermissionError, lmdb.NotFoundError):
        return 0
    except (OSError, lmdb.Error):
        return None


def _read_only(data: Path) -> lmdb.Environment:
    import lmdb

    return lmdb.open(os.fspath(data), subdir=False, readonly=True, lock=False, readahead=False, max_dbs=4)


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
