"""Drops the coldest pages of an environment until the rest fits."""

from __future__ import annotations

from collections.abc import Sequence

import lmdb
import numpy as np

from pagetier.shm.failpoints import point
from pagetier.tiers.disk import reader
from pagetier.tiers.disk.environment import Environment


def drop_coldest(environment: Environment) -> None:
    """Drops pages until the rest fits. Raises lmdb.CorruptedError if dropping pages does not help."""
    while (before := environment.used) > environment.shape.capacity:
        _drop(environment, _coldest(environment, before - environment.shape.capacity))
        if environment.used >= before:
            raise lmdb.CorruptedError(f"it counts {environment.used} frames that belong to no page")


def _drop(environment: Environment, keys: Sequence[bytes]) -> None:
    size = min(environment.shape.frames_per_transaction, environment.shape.pages_per_transaction)
    for first in range(0, len(keys), size):
        with environment.changing() as txn:
            for key in keys[first : first + size]:
                environment.delete(txn, key)
        point("shrinking.dropped")


def _coldest(environment: Environment, frames: int) -> list[bytes]:
    batches = list(reader.listed(environment))
    keys = np.frombuffer(b"".join(one.keys for one in batches), "V32")
    stamps = np.frombuffer(b"".join(one.stamps for one in batches), "<u8")
    sizes = np.frombuffer(b"".join(one.sizes for one in batches), "<u8").astype(np.int64)
    order = np.argsort(stamps, kind="stable")
    sums = np.cumsum(-(-sizes[order] // environment.shape.frame_bytes))
    return [key.tobytes() for key in keys[order[: int(np.searchsorted(sums, frames)) + 1]]]
