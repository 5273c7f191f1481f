"""Writes pages into one environment, in transactions of bounded size.

All of it runs in the environment's own thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import lmdb
import msgspec

from pagetier.tiers.base import Outgoing, TierError
from pagetier.tiers.capacity import DROPS
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.data_file import DAMAGE
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.file_format import Header, frames_of
from pagetier.tiers.disk.read_priority import ReaderCount


class FullError(lmdb.DiskError):
    """The file system gives no blocks for a transaction, which was not begun.

    Args:
        environment: The environment.
        refusal: The error number of the allocation, also of a quota or a disk error.
    """

    def __init__(self, environment: Environment, refusal: int) -> None:
        full = refusal in (0, errno.ENOSPC)
        why = f"the file system of {environment.folder} is full" if full else f"{environment.folder} gets no blocks"
        super().__init__(f"{os.strerror(refusal or errno.ENOSPC)}: {why}")


class Applied(msgspec.Struct, frozen=True):
    """The result of an environment's share of a batch. `reasons` has one element a page, "" if it is stored."""

    reasons: tuple[str, ...]
    undropped: str
    disk_bytes: int


def apply(environment: Environment, drops: Sequence[bytes], pages: Sequence[Outgoing], readers: ReaderCount) -> Applied:
    """Drops pages, then stores pages. Raises TierError if the environment cannot be used any more."""
    before = file_system.bytes_written()
    undropped = _drop_all(environment, drops)
    reasons: list[str] = []
    for batch in _batches(environment, pages):
        reasons += _store(environment, batch, readers)
    return Applied(tuple(reasons), undropped, file_system.bytes_written() - before)


def drop_if(environment: Environment, key: bytes, damaged: Header | None) -> None:
    """Drops a page that was found damaged, unless it was replaced since. Raises lmdb.Error."""
    with environment.changing() as txn:
        if reader.header_in(environment, txn, key) == damaged:
            environment.delete(txn, key)


def _drop_all(environment: Environment, keys: Sequence[bytes]) -> str:
    reasons = [_drop(environment, batch) for batch in list(_cut(environment, keys))]
    return next(filter(None, reasons), "")


def _drop(environment: Environment, keys: Sequence[bytes]) -> str:
    """Returns why not all are dropped, or "". A full file system allows few drops at once: trees are copied first."""
    half = len(keys) // 2
    try:
        _twice(environment, partial(_drop_together, environment, keys))
    except lmdb.Error as error:
        if half:
            return _drop(environment, keys[:half]) or _drop(environment, keys[half:])
        return _reason(environment, error)
    return ""


def _drop_together(environment: Environment, keys: Sequence[bytes]) -> None:
    """Drops keys in one transaction. A single key is tried without room, too. Raises FullError, lmdb.Error."""
    if not environment.can_drop(keys) and len(keys) > 1:
        raise FullError(environment, environment.blocks.refusal)
    with environment.changing() as txn:
        for key in keys:
            environment.delete(txn, key)


def _twice(environment: Environment, change: Callable[[], None]) -> None:
    """Retries a change where a map or a file system is full: freed pages are reusable after two more commits.

    Raises:
        lmdb.Error: The change failed.
        FullError: The file system has no room for the change.
        TierError: The environment cannot be used any more.
    """
    try:
        try:
            change()
        except (lmdb.PanicError, FullError, *DAMAGE):
            raise  # two more commits would not help
        except lmdb.Error:
            with contextlib.suppress(lmdb.MapFullError, lmdb.DiskError):
                environment.age()
            change()
    except lmdb.PanicError as error:
        raise TierError(f"{environment.folder} cannot be written any more ({error}): its disk failed") from error
    except DAMAGE as error:
        raise TierError(environment.broke(error)) from error
    except lmdb.Error as error:
        if _may_be_damage(environment, error):
            raise TierError(
                f"{environment.folder} cannot be written ({error}): the next disk worker verifies it"
            ) from error
        raise


def _may_be_damage(environment: Environment, error: lmdb.Error) -> bool:
    """Returns whether an I/O error may be damage: LMDB writes as many pages as a page claims to have, or fails.

    If the pages were verified just before, the disk is the reason.
    """
    return getattr(error, "code", 0) == errno.EIO and not environment.proven and not _is_full(environment)


def _cut(environment: Environment, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Yields the known keys in batches; the disk begins to read what dropping them will touch."""
    limit = DROPS * environment.shape.frames_per_transaction
    batch: list[bytes] = []
    frames = 0
    for key, header in zip(keys, reader.headers(environment, keys), strict=True):
        if header is None:
            continue
        environment.fetch_heads(header)
        batch.append(key)
        frames += sum(extent.frames for extent in header.extents)
        if frames >= limit or len(batch) >= environment.shape.pages_per_transaction:
            yield batch
            batch, frames = [], 0
    if batch:
        yield batch


def _batches(environment: Environment, pages: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    limit = environment.shape.frames_per_transaction
    batch: list[Outgoing] = []
    frames = 0
    for page in pages:
        full = len(batch) >= environment.shape.pages_per_transaction
        more = frames_of(page.size, environment.shape.frame_bytes)
        if batch and (full or frames + more > limit):
            yield batch
            batch, frames = [], 0
        batch.append(page)
        frames += more
    if batch:
        yield batch


def _store(environment: Environment, pages: Sequence[Outgoing], readers: ReaderCount) -> list[str]:
    """Returns why each page was not stored, "" for a page that was.

    Where the map or the file system is full, only pages that do not fit fail.
    """
    try:
        _twice(environment, partial(environment.store_together, pages, readers))
    except (lmdb.MapFullError, FullError) as error:
        if len(pages) == 1:
            return [str(error)]
        return [reason for page in pages for reason in _store(environment, [page], readers)]
    except lmdb.Error as error:
        return [_reason(environment, error)] * len(pages)
    return [""] * len(pages)


def _reason(environment: Environment, error: lmdb.Error) -> str:
    """Returns the message of an error.

    LMDB also reports an I/O error where the file system had room for only a part of a transaction.
    """
    return f"{error}: the file system of {environment.folder} is full" if _is_full(environment) else str(error)


def _is_full(environment: Environment) -> bool:
    return shutil.disk_usage(environment.folder).free < environment.shape.transaction_bytes


class Share(msgspec.Struct):
    """The work of one environment. `left`: frames that still fit; `pages`: their indices in the batch."""

    left: int
    drops: list[bytes]
    pages: list[int]

    @property
    def has_work(self) -> bool:
        """Whether the environment drops or stores a page."""
        return bool(self.drops or self.pages)


def share(
    environments: Sequence[Environment], drops: Sequence[bytes], pages: Sequence[Outgoing], frame_bytes: int
) -> list[Share]:
    """Returns each environment's share. Pages that fit nowhere are in none of them."""
    shares = [Share(one.shape.capacity - one.used, [], []) for one in environments]
    homes: dict[bytes, tuple[Share, int]] = {}
    dropped = set(drops)
    for environment, its in zip(environments, shares, strict=True):
        _find_drops(environment, its, list(dict.fromkeys(drops)), frame_bytes)
        for page, header in zip(pages, reader.headers(environment, [page.key for page in pages]), strict=True):
            if header is not None:
                homes[page.key] = (its, 0 if page.key in dropped else _frames_of_page(header, frame_bytes))
    for number, page in enumerate(pages):
        _place(shares, homes.get(page.key), number, frames_of(page.size, frame_bytes))
    return shares


def _find_drops(environment: Environment, its: Share, drops: Sequence[bytes], frame_bytes: int) -> None:
    for key, header in zip(drops, reader.headers(environment, drops), strict=True):
        if header is not None:
            its.drops.append(key)
            its.left += _frames_of_page(header, frame_bytes)


def _place(shares: Sequence[Share], home: tuple[Share, int] | None, number: int, frames: int) -> None:
    its, freed = home if home is not None else (max(shares, key=lambda one: one.left), 0)
    if its.left + freed >= frames:
        its.left += freed - frames
        its.pages.append(number)


def _frames_of_page(header: Header, frame_bytes: int) -> int:
    return frames_of(header.stored_bytes, frame_bytes)
