"""Makes an environment fit when it is opened: wrong records and the coldest pages leave, and files are shortened."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from pagetier.shm._core import KEY_BYTES
from pagetier.shm.failpoints import point
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.file_format import Header
from pagetier.tiers.disk.read_priority import ReaderCount
from pagetier.tiers.disk.resize import drop_coldest

if TYPE_CHECKING:
    from pagetier.tiers.frame_files.files_environment import FilesEnvironment


def is_needed(environment: FilesEnvironment) -> bool:
    """Returns whether records must be dropped, more is stored than fits, or files are too long."""
    capacity = environment.shape.capacity
    too_much = environment.used > capacity or environment.files.slots > capacity
    return bool(environment.wrong) or too_much or _has_long_records(environment)


def fit(environment: FilesEnvironment) -> None:
    """Makes pages and files fit. Raises lmdb.Error, OSError."""
    _drop_wrong(environment)
    drop_coldest(environment)
    if environment.files.slots > environment.shape.capacity:
        _move_pages(environment)
        environment.sync()  # after a power loss no record names what is cut off
        point("shrinking.moved")
        environment.files.shorten(environment.shape.capacity)
    if _has_long_records(environment):
        _compact(environment)


def _has_long_records(environment: FilesEnvironment) -> bool:
    return (environment.folder / file_system.DATA).stat().st_size > environment.shape.map_bytes


def _drop_wrong(environment: FilesEnvironment) -> None:
    size = environment.shape.pages_per_transaction
    for first in range(0, len(environment.wrong), size):
        with environment.changing() as txn:
            for key in environment.wrong[first : first + size]:
                environment.delete(txn, key)
        point("shrinking.dropped")


def _move_pages(environment: FilesEnvironment) -> None:
    """Moves pages from slots beyond the capacity to free ones; one that cannot be read is dropped."""
    for key, header in list(_beyond(environment)):
        moved = _moved(environment, header)
        with environment.changing() as txn:
            if moved is None:
                environment.delete(txn, key)
            else:
                environment.put(txn, key, moved)


def _beyond(environment: FilesEnvironment) -> Iterator[tuple[bytes, Header]]:
    for batch in reader.listed(environment):
        keys = [batch.keys[at : at + KEY_BYTES] for at in range(0, len(batch.keys), KEY_BYTES)]
        for key, header in zip(keys, reader.headers(environment, keys), strict=True):
            if header and any(run.page + run.frames > environment.shape.capacity for run in header.runs):
                yield key, header


def _moved(environment: FilesEnvironment, header: Header) -> Header | None:
    frame_bytes = environment.shape.frame_bytes
    count = sum(run.frames for run in header.runs)
    with memoryview(mmap.mmap(-1, count * frame_bytes)) as memory:
        frames = [memory[at : at + frame_bytes] for at in range(0, len(memory), frame_bytes)]
        try:
            if not environment.files.read(header.runs, frames):
                return None
        except OSError:
            return None
        (write,) = environment.take([count]).writes
        environment.write_frames(write.runs, frames, ReaderCount())
        for frame in frames:
            frame.release()
    return msgspec.structs.replace(header, runs=write.runs, serial=write.serial)


def _compact(environment: FilesEnvironment) -> None:
    beside = environment.folder.with_name(environment.folder.name + file_system.COPY)
    file_system.remove_environment(beside)
    beside.mkdir(mode=0o700)
    try:
        environment.compact_records(beside)
        _sync(beside / file_system.DATA)
        point("shrinking.copied")
        (beside / file_system.DATA).rename(environment.folder / file_system.DATA)
        point("shrinking.renamed")
        file_system.sync_folder(environment.folder)
    finally:
        file_system.remove_environment(beside)


def _sync(path: os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
