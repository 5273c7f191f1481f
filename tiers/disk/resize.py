"""Makes an environment fit its share of the cap when its store is opened: first the coldest pages leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import lmdb
import numpy as np

from pagetier.shm.failpoints import point
from pagetier.tiers.disk import file_system, reader
from pagetier.tiers.disk.environment import Environment

_Kind = TypeVar("_Kind", bound=Environment)


class EnvironmentResize(ABC, Generic[_Kind]):
    """The resize of an environment that was just opened and that nothing else uses yet.

    A crash at any moment leaves an environment that the next opening can resize: pages are dropped by transactions, and
    a file is replaced by a copy that was synced before.
    """

    def __init__(self, environment: _Kind) -> None:
        self.environment = environment

    @property
    def lost(self) -> str:
        """Which pages it drops because a file lacks their bytes, "" if none."""
        return ""

    @abstractmethod
    def is_needed(self) -> bool:
        """Returns whether more is stored than fits, or files are longer than they may be."""

    @abstractmethod
    def run(self) -> str:
        """Makes pages and files fit. Returns why the files are still too long, or "". Raises lmdb.Error, OSError."""

    @property
    def has_long_data(self) -> bool:
        """Whether LMDB's file is longer than its share of the cap."""
        data = self.environment.folder / file_system.DATA
        return data.stat().st_size > self.environment.shape.map_bytes

    def drop_coldest(self) -> None:
        """Drops pages until the rest fits. Raises lmdb.CorruptedError if dropping pages does not help."""
        environment = self.environment
        while (before := environment.used) > environment.shape.capacity:
            at_once = min(environment.shape.frames_per_transaction, environment.shape.pages_per_transaction)
            self.drop(self._coldest(before - environment.shape.capacity), at_once)
            if environment.used >= before:
                raise lmdb.CorruptedError(f"it counts {environment.used} frames that belong to no page")

    def drop(self, keys: Sequence[bytes], at_once: int) -> None:
        """Drops pages in transactions of `at_once` pages."""
        for first in range(0, len(keys), at_once):
            with self.environment.changing() as txn:
                for key in keys[first : first + at_once]:
                    self.environment.delete(txn, key)
            point("shrinking.dropped")

    def _coldest(self, frames: int) -> list[bytes]:
        pages = np.frombuffer(b"".join(one.pages for one in reader.listed(self.environment)), reader.STORED_PAGE)
        order = np.argsort(pages["stamp"], kind="stable")
        whole = -(-pages["size"].astype(np.int64) // self.environment.shape.frame_bytes)
        sums = np.cumsum(np.where(pages["slots"] > 0, pages["slots"], whole)[order])
        return [key.tobytes() for key in pages["key"][order[: int(np.searchsorted(sums, frames)) + 1]]]
