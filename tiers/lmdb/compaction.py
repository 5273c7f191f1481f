"""Shrinks files to a lower cap: the coldest pages are dropped, then the file is copied if there is room for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb
import msgspec
import numpy as np

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.failpoints import point
from pagetier.tiers.base import Outgoing
from pagetier.tiers.capacity import PAGE
from pagetier.tiers.lmdb import files, reader, writer
from pagetier.tiers.lmdb.environment import Environment
from pagetier.tiers.lmdb.read_priority import Patience, Turns
from pagetier.tiers.lmdb.records import frames_of

_FOR_TREES: Final = 1.1
_NO_TURNS: Final = Patience(Turns(), 0)  # no reads run while a tier is opened


def is_needed(environment: Environment) -> bool:
    """Returns whether more is stored than fits, or the file is longer than its share of the cap."""
    return environment.used > environment.shape.room or _is_too_long(environment)


def shrink(environment: Environment) -> str:
    """Shrinks the environment, and closes it if its file was replaced by a copy. Raises lmdb.Error, OSError.

    Returns:
        Why the file is still too long, or "".
    """
    _drop_coldest(environment)
    if not _is_too_long(environment):
        return ""
    if lacking := _lacking(environment):
        return f"copying it needs {lacking} more free bytes"
    _copy(environment)
    return ""


def remove_copies(folder: Path) -> None:
    """Removes copies that a crash left behind: they use disk space that is not counted. Raises OSError."""
    for path in [path for path in files.numbered_folders(folder) if path.suffix == files.COPY]:
        files.remove_environment(path)


def _drop_coldest(environment: Environment) -> None:
    """Drops pages until the rest fits. Raises lmdb.CorruptedError if dropping pages does not help."""
    while (before := environment.used) > environment.shape.room:
        _drop(environment, _coldest(environment, before - environment.shape.room))
        if environment.used >= before:
            raise lmdb.CorruptedError(f"it counts {environment.used} frames that belong to no page")


def _drop(environment: Environment, keys: Sequence[bytes]) -> None:
    size = environment.shape.frames_per_transaction
    for first in range(0, len(keys), size):
        with environment.changing() as txn:
            for key in keys[first : first + size]:
                writer.delete(environment, txn, key)
        point("shrinking.dropped")


def _coldest(environment: Environment, frames: int) -> list[bytes]:
    batches = list(reader.listed(environment))
    keys = np.frombuffer(b"".join(one.keys for one in batches), "V32")
    stamps = np.frombuffer(b"".join(one.stamps for one in batches), "<u8")
    sizes = np.frombuffer(b"".join(one.sizes for one in batches), "<u8").astype(np.int64)
    order = np.argsort(stamps, kind="stable")
    sums = np.cumsum(-(-sizes[order] // environment.shape.frame_bytes))
    return [key.tobytes() for key in keys[order[: int(np.searchsorted(sums, frames)) + 1]]]


def _is_too_long(environment: Environment) -> bool:
    return (environment.folder / files.DATA).stat().st_size > environment.shape.map_bytes


def _lacking(environment: Environment) -> int:
    needed = int(environment.used * environment.shape.stride * PAGE * _FOR_TREES) + (1 << 20)
    return max(0, needed - shutil.disk_usage(environment.folder).free)


def _copy(environment: Environment) -> None:
    beside = environment.folder.with_name(environment.folder.name + files.COPY)
    files.remove_environment(beside)
    try:
        with contextlib.closing(Environment(beside, environment.shape, environment.about)) as fresh:
            _copy_pages(environment, fresh)
            fresh.sync()
        point("shrinking.copied")
        (beside / files.DATA).rename(environment.folder / files.DATA)
        point("shrinking.renamed")
        files.sync_folder(environment.folder)
        environment.close()
    finally:
        files.remove_environment(beside)


def _copy_pages(source: Environment, target: Environment) -> None:
    frame = source.shape.frame_bytes
    memory: list[memoryview] = []
    for batch in reader.listed(source):
        spaces = source.spaces
        for key in (batch.keys[at : at + KEY_BYTES] for at in range(0, len(batch.keys), KEY_BYTES)):
            header = reader.raw(source, key, lambda count: _frames(memory, count, frame))
            if header is None or header.space not in spaces:
                continue
            page = Outgoing(
                key, spaces[header.space], header.size, header.stamp, memory[: frames_of(header.size, frame)]
            )
            with target.changing() as txn:
                number = target.number_of(txn, page.space)
                writer.put(target, txn, page, msgspec.structs.replace(header, space=number), _NO_TURNS)


def _frames(memory: list[memoryview], count: int, frame_bytes: int) -> Sequence[memoryview]:
    while len(memory) < count:
        memory.append(memoryview(bytearray(frame_bytes)))
    return memory[:count]
