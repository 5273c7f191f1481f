"""Makes folders of the disk tier whose pages have records and no bytes: a million take seconds and little disk.

Only reading a page would tell, since its checksum does not match: opening the tier reads the records alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Final

import lmdb
import msgspec
import numpy as np

from pagetier.shm._core import DISK_HISTORY_LAYOUT, KEY_BYTES
from pagetier.shm.protocol import Space
from pagetier.shm.row_arrays import dtype_of
from pagetier.tiers.capacity import StoreName
from pagetier.tiers.disk import file_format
from pagetier.tiers.disk.file_format import FrameExtent, Header
from pagetier.tiers.frame_files.records import pack_record
from pagetier.tiers.worker.open_store import store_class

FRAME: Final = 4096
_ENVIRONMENTS: Final = 4
_BYTES_PER_PAGE: Final = 12 << 10  # enough in either store
_PROMPT_PAGES: Final = 64
_CHECKSUM: Final = bytes(16)


class PageForm(msgspec.Struct, frozen=True):
    """The form of each page of a tier.

    Attributes:
        nbytes: Its bytes.
        frame_bytes: The bytes of a frame.
    """

    nbytes: int = FRAME
    frame_bytes: int = FRAME

    @property
    def frames(self) -> int:
        """The frames of a page."""
        return -(-self.nbytes // self.frame_bytes)


_ONE_FRAME: Final = PageForm()


def cap_of(pages: int) -> int:
    """Returns a cap with room for so many pages of one frame."""
    return pages * _BYTES_PER_PAGE + (256 << 20)


def make_sparse_tier(
    folder: Path, store: StoreName, pages: int, space: Space, form: PageForm = _ONE_FRAME, cap: int = 0
) -> bytes:
    """Makes a tier with pages in prompts of 64 pages.

    Args:
        folder: The folder of the tier.
        store: The store.
        pages: The number of pages.
        space: The namespace of the pages.
        form: The form of each page; by default one small frame.
        cap: The size of the tier; by default enough for pages of one small frame.

    Returns:
        Their keys, the oldest first.
    """
    store_class(store)(folder, cap or cap_of(pages), form.frame_bytes, _ENVIRONMENTS).close()
    keys = np.random.default_rng(4).bytes(KEY_BYTES * pages)
    records = _Records(store, space, form, keys, _histories(keys))
    for number in range(_ENVIRONMENTS):
        _fill(folder / str(number), records, range(number, pages, _ENVIRONMENTS))
    return keys


class _Records(msgspec.Struct, frozen=True):
    store: StoreName
    space: Space
    form: PageForm
    keys: bytes
    histories: list[bytes]


def _histories(keys: bytes) -> list[bytes]:
    """Returns the histories of pages that were used once: each follows the page before it in its prompt."""
    pages = len(keys) // KEY_BYTES
    histories = np.zeros(pages, dtype_of(DISK_HISTORY_LAYOUT))
    histories["depth"] = np.arange(pages) % _PROMPT_PAGES
    histories["uses"] = 1
    begins = np.frombuffer(keys, "u1").reshape(pages, KEY_BYTES)[:, :16].copy().view("V16")[:, 0]
    follows = histories["depth"] > 0
    histories["parent"][follows] = begins[np.flatnonzero(follows) - 1]
    return [row.tobytes() for row in histories]


def _fill(folder: Path, of: _Records, which: range) -> None:
    is_files, form = of.store == "files", of.form
    with closing(lmdb.open(str(folder), max_dbs=4, map_size=1 << 34, sync=False)) as env, env.begin(write=True) as txn:
        records, names = env.open_db(b"pages", txn), env.open_db(b"spaces", txn)
        txn.put(file_format.pack_number(0), msgspec.msgpack.encode(of.space), db=names)
        for slot, page in enumerate(which):
            key = of.keys[KEY_BYTES * page : KEY_BYTES * (page + 1)]
            extents = (FrameExtent(slot * form.frames, form.frames),)
            header = Header(0, form.nbytes, page + 1, _CHECKSUM, extents, of.histories[page], slot + 1)
            txn.put(key, pack_record(key, header) if is_files else file_format.pack_header(header), db=records)
        if not is_files:  # the store compares how many frames LMDB counts with the headers
            frames = env.open_db(b"frames", txn)
            for page, frame in product(which, range(form.frames)):
                key = of.keys[KEY_BYTES * page : KEY_BYTES * (page + 1)]
                txn.put(file_format.frame_key(key, frame), b"", db=frames)
    if is_files:
        with (folder / "frames.0").open("wb") as file:
            os.truncate(file.fileno(), len(which) * form.frames * form.frame_bytes)


def bare_scan(folder: Path) -> int:
    """Reads the key and the value of each record with a cursor of py-lmdb, and returns how many there are."""
    total = 0
    for number in range(_ENVIRONMENTS):
        with _records(folder / str(number)) as records:
            total += sum(1 for _ in records)
    return total


@contextmanager
def _records(folder: Path) -> Iterator[Iterator[tuple[bytes, bytes]]]:
    with closing(lmdb.open(str(folder), max_dbs=4, readonly=True, lock=False)) as env, env.begin() as txn:
        yield iter(txn.cursor(env.open_db(b"pages", txn, create=False)))
