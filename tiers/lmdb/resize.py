"""Shrinks files to a lower cap: the coldest pages are dropped, then the file is copied if there is room for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.failpoints import point
from pagetier.tiers.base import Outgoing
from pagetier.tiers.capacity import PAGE
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.file_format import frames_of
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.resize import drop_coldest
from pagetier.tiers.lmdb import values

if TYPE_CHECKING:
    from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment

_FOR_TREES: Final = 1.1
_NO_READERS: Final = Patience(ReaderCount(), 0)  # no reads run while a tier is opened


def is_needed(environment: LmdbEnvironment) -> bool:
    """Returns whether more is stored than fits, or the file is longer than its share of the cap."""
    return environment.used > environment.shape.capacity or _is_too_long(environment)


def shrink(environment: LmdbEnvironment) -> str:
    """Shrinks the environment, and closes it if its file was replaced by a copy. Raises lmdb.Error, OSError.

    Returns:
        Why the file is still too long, or "".
    """
    drop_coldest(environment)
    if not _is_too_long(environment):
        return ""
    if lacking := _lacking(environment):
        return f"copying it needs {lacking} more free bytes"
    _copy(environment)
    return ""


def _is_too_long(environment: LmdbEnvironment) -> bool:
    return (environment.folder / file_system.DATA).stat().st_size > environment.shape.map_bytes


def _lacking(environment: LmdbEnvironment) -> int:
    needed = int(environment.used * environment.shape.stride * PAGE * _FOR_TREES) + (1 << 20)
    return max(0, needed - shutil.disk_usage(environment.folder).free)


def _copy(environment: LmdbEnvironment) -> None:
    beside = environment.folder.with_name(environment.folder.name + file_system.COPY)
    file_system.remove_environment(beside)
    try:
        with contextlib.closing(type(environment)(beside, environment.shape, environment.about)) as fresh:
            _copy_pages(environment, fresh)
            fresh.sync()
        point("shrinking.copied")
        (beside / file_system.DATA).rename(environment.folder / file_system.DATA)
        point("shrinking.renamed")
        file_system.sync_folder(environment.folder)
        environment.close()
    finally:
        file_system.remove_environment(beside)


def _copy_pages(source: LmdbEnvironment, target: LmdbEnvironment) -> None:
    frame = source.shape.frame_bytes
    memory: list[memoryview] = []
    for batch in reader.listed(source):
        spaces = source.spaces
        for key in (batch.keys[at : at + KEY_BYTES] for at in range(0, len(batch.keys), KEY_BYTES)):
            header = values.raw(source, key, lambda count: _frames(memory, count, frame))
            if header is None or header.space not in spaces:
                continue
            page = Outgoing(
                key, spaces[header.space], header.size, header.stamp, memory[: frames_of(header.size, frame)]
            )
            with target.changing() as txn:
                number = target.number_of(txn, page.space)
                values.put(target, txn, page, msgspec.structs.replace(header, space=number), _NO_READERS)


def _frames(memory: list[memoryview], count: int, frame_bytes: int) -> Sequence[memoryview]:
    while len(memory) < count:
        memory.append(memoryview(bytearray(frame_bytes)))
    return memory[:count]
