"""One LMDB environment: its databases, its transactions, its namespaces.

A transaction that writes begins and ends in one thread, and the others wait for their turn. Nothing is
synced by a commit: see soundness.py for what that means after a power loss.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import lmdb
import msgspec

from ...shm.points import point
from ...shm.protocol import Space
from ..base import TierError
from ..room import PAGE, Shape
from . import files, records
from .blocks import Blocks
from .places import Reader
from .records import About
from .writeback import Writeback

_ABOUT: Final = b"about"
_FOR_DROPPING: Final = 1 << 20  # trees are written anew before what they free serves again
Transaction: TypeAlias = "lmdb.Transaction[memoryview]"


class Environment:
    """Of one folder, which it makes. Raises lmdb.Error, OSError, msgspec.MsgspecError, UnicodeDecodeError.

    proven: whether it was found sound just before it was opened; for who opened it to say.
    """

    def __init__(self, folder: Path, shape: Shape, about: About) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.shape = shape
        self.used = 0  # frames
        self.proven = False
        self._spaces: dict[Space, int] = {}
        self._new_spaces: dict[Space, int] = {}
        self._one_changes = threading.Lock()
        with contextlib.ExitStack() as undo:
            map_bytes = _map_bytes(folder, shape.map_bytes)
            self._env = _open(folder, map_bytes)
            undo.callback(self._env.close)
            self._file = os.open(folder / files.DATA, os.O_RDWR | os.O_CLOEXEC)  # who reads only is given no blocks
            undo.callback(os.close, self._file)
            self._open_databases(about)
            self._length = os.fstat(self._file).st_size
            self._undo = undo.pop_all()
        self.blocks = Blocks(self._file, map_bytes)
        self.writeback = Writeback(self._file, shape.stride)
        self.reader = Reader(self._file, shape.frame_bytes, shape.stride)

    def _open_databases(self, about: About) -> None:
        with self._env.begin(write=True) as txn:
            self.frames = self._env.open_db(b"frames", txn)
            self.pages = self._env.open_db(b"pages", txn)
            self._names = self._env.open_db(b"spaces", txn)
            self._notes = self._env.open_db(_ABOUT, txn)
            _insist_on_flags(self.frames, self.pages, self._names, self._notes)
            if txn.get(_ABOUT, db=self._notes) is None:
                txn.put(_ABOUT, msgspec.msgpack.encode(about), db=self._notes)
            self.about = msgspec.msgpack.decode(txn.get(_ABOUT, b"", db=self._notes), type=About)
            self.used = txn.stat(self.frames)["entries"]
            for number, name in txn.cursor(self._names):
                self._spaces[msgspec.msgpack.decode(name, type=Space)] = records.unpack_number(number)

    @property
    def file_bytes(self) -> int:
        """What its files take by their length."""
        return sum((self.folder / name).stat().st_size for name in (files.DATA, files.LOCK))

    @property
    def file_pages(self) -> int:
        """How many pages its file has, whether something is in them or not."""
        last: int = self._env.info()["last_pgno"]
        return last + 1

    def used_pages(self) -> tuple[int, int]:
        """By trees, and by frames. What the free lists take is not known."""
        with self.looking() as txn:
            stats = [self._env.stat(), *map(txn.stat, (self.frames, self.pages, self._names, self._notes))]
        trees = sum(one["branch_pages"] + one["leaf_pages"] for one in stats)
        return trees, sum(one["overflow_pages"] for one in stats)

    @property
    def spaces(self) -> dict[int, Space]:
        """Its namespaces by their numbers here."""
        return {number: space for space, number in self._spaces.copy().items()}

    def looking(self) -> Transaction:
        """A transaction that reads: nothing that it sees is used anew while it is open."""
        return self._env.begin(buffers=True)

    def listing(self) -> lmdb.Transaction[bytes]:
        """The same, for what outlives it."""
        return self._env.begin()

    @contextlib.contextmanager
    def changing(self) -> Iterator[Transaction]:
        """A transaction that is committed at the end, and leaves no trace where something fails.

        Raises lmdb.Error, also where the count of frames is not what the last one left, and where somebody else
        changed the file TierError, or OSError where it is gone.
        """
        with self._one_changes:
            self._insist()
            try:
                with self._env.begin(write=True, buffers=True) as txn:
                    point("store.begun")
                    self._insist_on_count(txn)
                    yield txn
                    point("store.changed")
                    used = txn.stat(self.frames)["entries"]
                point("store.committed")
                self._lengthen()
                self._spaces |= self._new_spaces
                self.used = used
                point("store.lengthened")
                self.writeback.committed()
            finally:
                self._new_spaces = {}
                self.writeback.aborted()

    def _lengthen(self) -> None:
        """LMDB writes no page that is free again already: the file may end before the last that its meta names."""
        promised = self.file_pages * PAGE
        with contextlib.suppress(OSError):  # it is found too short then, if it is opened before it grows
            if os.fstat(self._file).st_size < promised:
                os.ftruncate(self._file, promised)
            self._length = max(self._length, promised)

    def _insist(self) -> None:
        """A file that was cut would grow again as pages are written to it, with nothing where others were."""
        if why := self.changed():
            raise TierError(why)

    def _insist_on_count(self, txn: Transaction) -> None:
        """What is left of the room follows from it, from now on and in all runs to come."""
        there = txn.stat(self.frames)["entries"]
        if there != self.used:
            raise lmdb.CorruptedError(f"it counts {there} frames, and had {self.used}")

    def changed(self) -> str:
        """What somebody else did to its file since it was opened, or "". Raises OSError where it is gone."""
        data, length = self.folder / files.DATA, self._length  # before it is looked at: it may grow meanwhile
        if not files.is_still(self._file, data):
            return f"{data} was replaced while it was open"
        there = os.fstat(self._file).st_size
        return f"{data} was cut while it was open: {there} bytes of {length}" if there < length else ""

    def number_of(self, txn: Transaction, space: Space) -> int:
        """The namespace's number here, given to it if it is new."""
        number = self._spaces.get(space, self._new_spaces.get(space))
        if number is None:
            number = max((*self._spaces.values(), *self._new_spaces.values()), default=-1) + 1
            txn.put(records.pack_number(number), msgspec.msgpack.encode(space), db=self._names)
            self._new_spaces[space] = number
        return number

    def age(self) -> None:
        """Commits as often as it takes until what was freed serves again. Raises lmdb.Error."""
        for turn in (b"\0", b"\1"):
            with self.changing() as txn:
                txn.put(b"turn", turn, db=self._notes)

    def fetch_heads(self, runs: tuple[records.Run, ...]) -> None:
        """Frees of these frames will touch their first pages: lets the disk begin to read them."""
        for offset in self.reader.heads(runs):
            files.fetch_ahead(self._file, offset, PAGE)

    def sync(self) -> None:
        """Brings all that was committed to the disk. Raises lmdb.Error."""
        self._env.sync(True)  # noqa: FBT003  even though commits do not

    def broke(self, error: lmdb.Error) -> str:
        """LMDB stumbled over what lies there: what to say of it.

        Proofs do not see all that LMDB stumbles over: what one found sound just now, none finds. Its file goes then, so
        that whoever opens it next begins it anew.
        """
        if not self.proven:
            return f"{self.folder} is damaged ({error}): restart to have it proven"
        with contextlib.suppress(OSError):
            (self.folder / files.DATA).unlink()
        return f"{self.folder} is damaged ({error}), which no proof sees: it is begun anew"

    def close(self) -> None:
        """Twice is fine."""
        self._undo.close()


def _insist_on_flags(*databases: lmdb._Database) -> None:
    """None of ours has any; others would have its keys looked for where they are not. Raises lmdb.CorruptedError."""
    if any(flag for database in databases for flag in database.flags().values()):
        raise lmdb.CorruptedError("a database has flags that none was given")


def _map_bytes(folder: Path, share: int) -> int:
    """Its share of the cap; of a file that takes more already, so much that pages can be dropped from it."""
    try:
        there = (folder / files.DATA).stat().st_size
    except FileNotFoundError:
        return share
    return share if there <= share else -(-there // PAGE) * PAGE + _FOR_DROPPING


def _open(folder: Path, map_bytes: int) -> lmdb.Environment:
    return lmdb.open(
        str(folder), map_size=map_bytes, sync=False, metasync=False, readahead=False, mode=0o600, max_dbs=4
    )
