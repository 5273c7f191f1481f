"""Tests which segments a configuration needs, and which existing ones it can use."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from pagetier.daemon.config.schema import ArenaOptions, Config, DiskOptions, IndexOptions
from pagetier.daemon.host.capacity import geometry_of, serves, short_index

SMALL = Config(arena=ArenaOptions(size=16 << 20, frame_size=1 << 16), disk=DiskOptions(path=Path("/d"), size=32 << 20))


def with_disk(size: int, config: Config = SMALL) -> Config:
    return structs.replace(config, disk=structs.replace(config.disk, size=size))


@pytest.mark.parametrize("size", [0, 16 << 20, 32 << 20])
def test_an_index_is_large_enough_for_the_disk_that_it_was_made_for_and_for_smaller_ones(size: int) -> None:
    assert serves(geometry_of(SMALL), with_disk(size))
    assert short_index(geometry_of(SMALL), with_disk(size)) == ""


def test_an_index_that_serves_may_be_too_small() -> None:
    assert serves(geometry_of(SMALL), with_disk(512 << 20))
    warning = short_index(geometry_of(SMALL), with_disk(512 << 20))
    assert warning.startswith("the index has room for 768 pages, but disk.size = 512MiB needs 8,448: ")


def test_a_configured_index_size_is_kept() -> None:
    chosen = structs.replace(SMALL, index=IndexOptions(entries=500))
    assert serves(geometry_of(chosen), with_disk(512 << 20, chosen))
    assert short_index(geometry_of(chosen), with_disk(512 << 20, chosen)) == ""
