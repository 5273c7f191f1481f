"""A cap lower than what the files take: the coldest pages go, then the file is written anew if there is room."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import lmdb
import msgspec
import numpy as np

from ...shm.points import point
from ..base import Outgoing
from ..room import PAGE
from . import files, reading, writing
from .environment import Environment
from .records import frames_of
from .turns import Patience, Turns

_FOR_TREES: Final = 1.1
_NO_TURNS: Final = Patience(Turns(), 0)  # nobody reads while a tier is opened


def is_needed(environment: Environment) -> bool:
    """Whether it holds more than fits, or its file is longer than its share of the cap."""
    return environment.used > environment.shape.room or _is_too_long(environment)


def shrink(environment: Environment) -> str:
    """Why its file is still too long, or "". Closes it where the file was written anew. Raises lmdb.Error, OSError."""
    _drop_coldest(environment)
    if not _is_too_long(environment):
        return ""
    if lacking := _lacking(environment):
        return f"{lacking} bytes more would have to be free for writing it anew"
    _copy(environment)
    return ""


def remove_copies(folder: Path) -> None:
    """Those that a death left: they take of the cap, and are in nobody's count. Raises OSError."""
    for path in [path for path in files.numbered_folders(folder) if path.suffix == files.COPY]:
        files.remove_environment(path)


def _drop_coldest(environment: Environment) -> None:
    """Until the rest fits. Raises lmdb.CorruptedError where dropping pages does not help."""
    while (before := environment.used) > environment.shape.room:
        _drop(environment, _coldest(environment, before - environment.shape.room))
        if environment.used >= before:
            raise lmdb.CorruptedError(f"it counts {environment.used} frames, and no page that has them")


def _drop(environment: Environment, keys: Sequence[bytes]) -> None:
    size = environment.shape.frames_per_transaction
    for first in range(0, len(keys), size):
        with environment.changing() as txn:
            for key in keys[first : first + size]:
                writing.delete(environment, txn, key)
        point("shrinking.dropped")


def _coldest(environment: Environment, frames: int) -> list[bytes]:
    held = list(reading.listed(environment))
    keys = np.frombuffer(b"".join(one.keys for one in held), "V32")
    stamps = np.frombuffer(b"".join(one.stamps for one in held), "<u8")
    sizes = np.frombuffer(b"".join(one.sizes for one in held), "<u8").astype(np.int64)
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
    for held in reading.listed(source):
        spaces = source.spaces
        for key in (held.keys[at : at + 32] for at in range(0, len(held.keys), 32)):
            header = reading.raw(source, key, lambda count: _frames(memory, count, frame))
            if header is None or header.space not in spaces:
                continue
            page = Outgoing(
                key, spaces[header.space], header.size, header.stamp, memory[: frames_of(header.size, frame)]
            )
            with target.changing() as txn:
                number = target.number_of(txn, page.space)
                writing.put(target, txn, page, msgspec.structs.replace(header, space=number), _NO_TURNS)


def _frames(memory: list[memoryview], count: int, frame_bytes: int) -> Sequence[memoryview]:
    while len(memory) < count:
        memory.append(memoryview(bytearray(frame_bytes)))
    return memory[:count]
