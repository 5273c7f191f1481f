"""The reserve of an environment: on a file system without a free block, pages can be dropped and new ones stored."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pagetier.tiers.base import Outgoing, ReadOutcome, TierError
from pagetier.tiers.disk import blocks as disk_blocks
from pagetier.tiers.disk import file_system
from pagetier.tiers.disk.environment import Environment
from pagetier.tiers.disk.recovery import shortened
from pagetier.tiers.disk.store import DiskStore
from store_pages import CAP, FRAME, bytes_in, keys_in, outcomes, outgoing, outgoings, small_tier

CALLS = ("mdb_txn_commit", "pwritev")


def take_what_is_left(point: Path) -> None:
    """Fills the file system to the last block."""
    with (point / "foreign").open("ab", buffering=0) as file:
        while os.statvfs(point).f_bfree:
            file.write(bytes(4096))


def stored(tier: DiskStore, pages: list[Outgoing]) -> list[Outgoing]:
    """Returns the pages that the tier stored."""
    return [page for page, is_there in zip(pages, tier.write([], pages).stored, strict=True) if is_there]


def blocks_in(folder: Path) -> list[int]:
    """Returns the bytes allocated to each data file."""
    return [path.stat().st_blocks * 512 for path in sorted(folder.glob("*/data.mdb"))]


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize("environments", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 7, 30, 60])
def test_pages_can_be_dropped_without_free_blocks(tmpfs: Callable[..., Path], environments: int, count: int) -> None:
    point = tmpfs("8m")
    tier = small_tier(point / "tier", 2 * CAP, environments)
    pages = stored(tier, outgoings(range(count)))
    assert len(pages) == count
    take_what_is_left(point)
    for at in range(0, count, 20):
        assert tier.write([page.key for page in pages[at : at + 20]], []).undropped == ""
        assert keys_in(tier) == {page.key for page in pages[at + 20 :]}
    tier.close()


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize("environments", [1, 2])
def test_freed_room_takes_new_pages_without_free_blocks(tmpfs: Callable[..., Path], environments: int) -> None:
    point = tmpfs("8m")
    tier = small_tier(point / "tier", 2 * CAP, environments)
    held = stored(tier, outgoings(range(100)))
    take_what_is_left(point)
    for first in range(1000, 2000, 50):
        assert tier.write([page.key for page in held[:50]], []).undropped == ""
        new = stored(tier, outgoings(range(first, first + 50)))
        assert len(new) >= 40
        held = held[50:] + new
        assert keys_in(tier) == {page.key for page in held}
    assert outcomes(tier, held) == {ReadOutcome.EXACT}
    tier.close()


@pytest.mark.parametrize("kib", range(2900, 3200, 10))
def test_environments_that_share_a_full_file_system_can_all_drop(tmpfs: Callable[..., Path], kib: int) -> None:
    point = tmpfs(f"{kib}k")
    tier = small_tier(point / "tier", 2 * CAP, 2 + 2 * (kib % 20 // 10))
    kept = stored(tier, outgoings(range(400)))
    assert 5 < len(kept) < 300
    take_what_is_left(point)
    assert tier.write([page.key for page in kept], []).undropped == ""
    assert {shortened(environment.folder) for environment in tier._environments} == {""}
    assert keys_in(tier) == set()
    assert len(stored(tier, outgoings(range(1000, 1400)))) > len(kept) // 2
    tier.close()


@pytest.mark.usefixtures("each_store")
def test_a_tier_is_opened_without_free_blocks(tmpfs: Callable[..., Path]) -> None:
    point = tmpfs("4m")
    tier = small_tier(point / "tier", 2 * CAP)
    pages = stored(tier, outgoings(range(400)))
    take_what_is_left(point)
    tier.close()
    tier = small_tier(point / "tier", 2 * CAP)
    assert tier.state().opened == "as it was left"
    assert tier.write([page.key for page in pages[:20]], []).undropped == ""
    # how much is free now in which environment, who of them took the last blocks has decided
    assert tier.write([page.key for page in pages[20:]], []).undropped == ""
    assert stored(tier, outgoings(range(1000, 1005)))
    tier.close()


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize("free", range(24))
def test_a_new_tier_without_room_for_its_files_is_an_error(tmpfs: Callable[..., Path], free: int) -> None:
    """A file that is mapped before it has blocks kills the process."""
    point = tmpfs("4m")
    take_what_is_left(point)
    os.truncate(point / "foreign", (point / "foreign").stat().st_size - 4096 * free)
    assert os.statvfs(point).f_bfree == free
    try:
        small_tier(point / "tier", 2 * CAP, 4).close()
    except TierError as error:
        assert "cannot be used by the disk tier" in str(error)


def test_what_a_file_system_has_no_room_for_takes_nothing_of_it(tmp_path: Path) -> None:
    """Some file systems give all they have before they refuse the rest, and are full until then."""
    with (tmp_path / "file").open("wb") as file:
        assert disk_blocks.allocate(file.fileno(), 0, 1 << 50) == errno.ENOSPC
        assert os.fstat(file.fileno()).st_blocks == 0
        assert disk_blocks.allocate(file.fileno(), 0, 1 << 20) in {0, *disk_blocks.UNSUPPORTED}


def test_no_more_blocks_than_the_cap_and_the_length_says_what_is_written(tier: DiskStore, tmp_path: Path) -> None:
    assert bytes_in(tmp_path) < 1 << 17
    for first in range(0, 400, 20):
        tier.write([], outgoings(range(first, first + 20)))
        assert sum(blocks_in(tmp_path)) <= CAP
        assert bytes_in(tmp_path) <= CAP
    assert tier.state().used_frames > 0.8 * tier.capacity


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (errno.ENOSPC, "No space left on device: the file system of "),
        (errno.EDQUOT, "Disk quota exceeded: "),
        (errno.EIO, "Input/output error: "),
    ],
)
def test_blocks_that_are_refused_refuse_pages_and_change_nothing(
    tier: DiskStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, why: str
) -> None:
    old = stored(tier, outgoings(range(20)))
    before = bytes_in(tmp_path), blocks_in(tmp_path), tier.state().used_frames
    with monkeypatch.context() as patch:
        patch.setattr(disk_blocks, "allocate", lambda *_: number)
        written = tier.write([], [outgoing(100, 300 * FRAME), outgoing(101, 300 * FRAME)])
    assert written.stored == (False, False)
    assert all(why in reason for reason in written.reasons), written.reasons
    assert all(reason.endswith(" is full") is (number == errno.ENOSPC) for reason in written.reasons)
    assert (bytes_in(tmp_path), blocks_in(tmp_path), tier.state().used_frames) == before
    assert outcomes(tier, old) == {ReadOutcome.EXACT}
    assert len(stored(tier, [outgoing(100, 300 * FRAME)])) == 1


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_that_can_not_be_asked_is_written_to(
    tmpfs: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(disk_blocks, "allocate", lambda *_: number)
    tier = small_tier(tmpfs("3m") / "tier", 2 * CAP)
    written = tier.write([], outgoings(range(400)))
    assert set(written.stored) == {True, False}
    # LMDB calls a write that was cut short an input/output error
    reasons = {reason.partition(": the file system of ")[0] for reason in written.reasons}
    assert reasons <= {"", *(f"{call}: {os.strerror(n)}" for call in CALLS for n in (errno.ENOSPC, errno.EIO))}
    assert tier.state().used_frames == 3 * sum(written.stored)
    tier.close()


@pytest.mark.usefixtures("each_store")
def test_a_clean_tier_can_be_changed_where_no_block_is_left(tmpfs: Callable[..., Path]) -> None:
    point = tmpfs("4m")
    tier = small_tier(point / "tier", 2 * CAP)
    pages = stored(tier, outgoings(range(40)))
    for number in range(3):
        tier.sync()
        assert tier.state().clean
        take_what_is_left(point)
        assert tier.write([page.key for page in pages[10 * number : 10 * number + 10]], []).undropped == ""
        assert not tier.state().clean
    tier.close()
    tier = small_tier(point / "tier", 2 * CAP)
    assert tier.state().opened == "as it was left"
    assert keys_in(tier) == {page.key for page in pages[30:]}
    tier.close()


@pytest.mark.usefixtures("each_store")
def test_a_state_file_is_written_where_names_can_not_be_exchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_system, "_exchange", lambda *_: False)
    tier = small_tier(tmp_path)
    assert stored(tier, outgoings(range(5)))
    tier.close()
    assert not (tmp_path / "state.tmp").exists()
    tier = small_tier(tmp_path)
    assert tier.state().opened == "as it was left"
    tier.close()


def test_a_file_is_as_long_as_its_meta_pages_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB does not write last pages that are free again already: as if there were some."""
    tier = small_tier(tmp_path, environments=1)
    (environment,) = tier._environments
    pages = stored(tier, outgoings(range(10)))
    promised = environment.file_pages + 16
    with monkeypatch.context() as patch:
        patch.setattr(Environment, "file_pages", promised)
        environment.age()
    assert (environment.folder / "data.mdb").stat().st_size == promised * 4096
    more = stored(tier, outgoings(range(10, 40)))
    assert outcomes(tier, pages + more) == {ReadOutcome.EXACT}
    tier.close()


def test_a_file_that_its_process_left_short_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died behind a commit, before the file was made as long as its meta pages say."""
    monkeypatch.setattr(Environment, "_lengthen", lambda self: None)
    tier = small_tier(tmp_path, environments=1)
    kept = stored(tier, outgoings(range(40)))
    environment = tier._environments[0]
    with environment.changing() as txn:  # frees what it has just taken behind the end
        for number in range(50):
            txn.put(b"%064d" % number, bytes(FRAME), db=environment.counted)
        for number in range(50):
            txn.delete(b"%064d" % number, db=environment.counted)
    assert shortened(tmp_path / "0"), "LMDB writes all pages now: lengthening is of no use any more"
    tier.close()
    monkeypatch.undo()
    tier = small_tier(tmp_path, environments=1)
    assert tier.state().opened == "as it was left"
    assert outcomes(tier, kept) == {ReadOutcome.EXACT}
    tier.close()
