"""Tests what an observer says of pages: where they are, and which there are."""

from __future__ import annotations

import numpy as np
import pytest

from eventually import eventually
from pagetier.shm._core import KEY_BYTES, LISTED_LAYOUT, TierFlag
from pagetier.shm.row_arrays import dtype_of
from running_daemon import RunningDaemon, namespace

SPACE, OTHER = namespace(), namespace(lora="other")


def test_pages_are_located_from_their_publication_to_their_end() -> None:
    with RunningDaemon("1MiB", "64KiB") as daemon, daemon.client() as client:
        keys, observer = SPACE.keys(range(16 * 4)), daemon.observer()
        assert observer.locate(keys.data) == bytes(4)
        with client.reserve(keys[:2], 100) as reserved:
            assert observer.locate(keys.data) == bytes(4), "pages that are being written are not here"
            reserved.publish()
        client.store(OTHER.keys(range(16)), [bytes(100)])
        assert observer.locate(keys.data) == bytes([TierFlag.MEMORY] * 2 + [0] * 2)
        assert observer.locate(b"") == b""
        numbers = {space.digest: space.number for space in observer.spaces()}
        rows = np.frombuffer(observer.pages(numbers[SPACE.digest]), dtype_of(LISTED_LAYOUT))
        assert {row["key"].tobytes() for row in rows} == set(keys[:2]) and set(rows["size"]) == {100}
        assert len(observer.pages(numbers[OTHER.digest])) == LISTED_LAYOUT.size
        assert observer.pages(len(numbers)) == b""
        for entries in (1, 3, observer.header().entries, 2**32 - 1):
            starts = range(0, observer.header().entries, entries)
            slices = [observer.pages(numbers[SPACE.digest], start, entries) for start in starts]
            assert b"".join(slices) == rows.tobytes() and max(map(len, slices)) <= entries * LISTED_LAYOUT.size
        assert observer.pages(numbers[SPACE.digest], observer.header().entries, 2**32 - 1) == b""
        daemon.flush()
        assert eventually(lambda: observer.locate(keys.data) == bytes(4))


def test_a_part_of_a_key_is_rejected() -> None:
    with RunningDaemon("1MiB", "64KiB") as daemon, pytest.raises(ValueError, match="no whole number of 32-byte"):
        daemon.observer().locate(bytes(KEY_BYTES + 1))
