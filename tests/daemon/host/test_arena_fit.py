"""Tests which segments a configuration needs, and that an arena that is said to fit leaves room for the processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs

from daemon_constants import PROGRAM
from memory_cgroup import limited
from pagetier.daemon.config.disk_options import DiskOptions
from pagetier.daemon.config.schema import ArenaOptions, Config, IndexOptions, MetricsOptions
from pagetier.daemon.host.arena_fit import Processes, geometry_of, need_of, processes_of, serves, short_index
from refused_starts import refused
from running_daemon import RunningDaemon, namespace

MIB, GIB = 1 << 20, 1 << 30
LIMIT = 720 * MIB
PAGE, PAGES = 8 * MIB, 16
SMALL = Config(
    arena=ArenaOptions(size=16 << 20, frame_size=1 << 16), disk=DiskOptions(path=(Path("/d"),), size=(32 << 20,))
)


def configured(arena: int = GIB, size: int = 0, environments: int = 4) -> Config:
    disk = DiskOptions(path=(Path("/disk"),), size=(size,) if size else (), environments=environments)
    return Config(arena=ArenaOptions(size=arena, frame_size=MIB), disk=disk)


@pytest.mark.parametrize("compress", ["off", "on"])
@pytest.mark.parametrize(("arena", "disk"), [(1, 0), (1, 10), (16, 500), (64, 500), (2048, 20480)], ids=str)
def test_the_index_takes_a_two_hundredth_of_memory_and_a_two_thousandth_of_the_disk(
    arena: int, disk: int, compress: Literal["off", "on"]
) -> None:
    """With the default frames, as long as there is an entry for each of them."""
    config = structs.replace(configured(arena * GIB, disk * GIB), arena=ArenaOptions(size=arena * GIB))
    config = structs.replace(config, disk=structs.replace(config.disk, compress=compress))
    index, locks, _ = geometry_of(config).sizes
    assert index + locks <= arena * GIB / 200 + disk * GIB / 2000


def test_the_disk_s_worker_and_http_are_counted() -> None:
    entries = 1024 * (31 + 48)  # of an arena of 1 GiB
    alone = processes_of(configured())
    assert alone == Processes(fixed=48 * MIB + entries)
    assert alone.beside(0) == 48 * MIB + entries
    listening = Config(metrics=MetricsOptions(listen="/metrics"))  # type: ignore[arg-type]  # any address
    assert processes_of(listening).beside(0) == 72 * MIB + entries
    assert processes_of(configured(size=GIB)).beside(0) == (48 + 24 + 4 * 8 + 2) * MIB + 2 * entries


def test_a_large_index_takes_private_memory_of_the_daemon() -> None:
    small, large = (Config(index=IndexOptions(entries=entries)) for entries in (1, 10_000_001))
    assert processes_of(large).beside(0) - processes_of(small).beside(0) == 310_000_000 + 64 * MIB - 48


def test_a_batch_of_writes_is_a_part_of_the_arena_and_limited() -> None:
    def batch(arena: int) -> int:
        with_disk = processes_of(configured(size=GIB))
        return with_disk.beside(arena) - with_disk.beside(0) - 3 * arena // 512

    assert batch(256 * MIB) == 32 * MIB
    assert batch(GIB) == batch(64 * GIB) == 128 * MIB
    many, most = (processes_of(configured(size=GIB, environments=n)).fixed for n in (16, 64))
    assert many == most, "no more is under way than one batch"


def test_the_index_of_the_disk_s_pages_does_not_shrink_with_the_arena() -> None:
    large, small = need_of(configured(64 * GIB, size=512 * GIB)), need_of(configured(GIB, size=512 * GIB))
    assert large.index_fixed == pytest.approx(small.index_fixed, rel=0.01)
    assert large.index_fixed > 100 * (GIB // MIB)


def with_disk(size: int, config: Config = SMALL) -> Config:
    return structs.replace(config, disk=structs.replace(config.disk, size=(size,) if size else ()))


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


def test_a_daemon_that_is_said_to_fit_into_a_control_group_is_not_killed_in_it(
    given: list[str], tmp_path: Path
) -> None:
    """With pages as large as a transaction and many environments, the worker's heap has its largest size."""
    disk = ("--disk-path", str(tmp_path / "disk"), "--disk-size", "2GiB", "--constant", "disk.environments=16")
    flags = ("--set", f"metrics.listen={tmp_path / 'metrics'}", *disk)
    with limited(LIMIT) as group:
        sizes = ("--set", "arena.frame_size=1MiB", "--arena-size", "2GiB")
        message = refused(*given, *sizes, *flags, code=PROGRAM, before=group.before)
        assert "of which the daemon's processes take" in message
        (fits,) = re.findall(r'would fit: arena.size = "(\w+)"', message)
        with RunningDaemon(fits, "1MiB", *flags, before=group.before) as daemon, daemon.client() as client:
            daemon.wait_disk_open()
            for prompt in range(5):  # more than the arena
                keys = namespace(salt=str(prompt)).keys(range(16 * PAGES))
                assert client.store(keys, [bytes(PAGE)] * PAGES).stored == PAGES
                daemon.until_written()
            assert daemon.header().evicted > 0
            assert group.kills == 0, daemon.log.read_text()
            assert "disk_down" not in daemon.log.read_text()
