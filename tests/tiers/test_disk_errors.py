"""Disks that are full, read-only or failing, and readers beside writers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from pagetier.shm._core import KEY_BYTES
from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.disk import doubt
from pagetier.tiers.disk.read_priority import Patience, ReaderCount
from pagetier.tiers.disk.store import DiskStore
from pagetier.tiers.lmdb.lmdb_environment import LmdbEnvironment
from store_pages import CAP, keys_in, outcome_of, outcomes, outgoing, outgoings, small_tier
from virtual_clock import VirtualClock

SEEN = 20
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


def test_a_full_file_system_rejects_pages_and_loses_none(tmpfs: Callable[..., Path]) -> None:
    folder = tmpfs("3m") / "tier"
    tier = small_tier(folder, cap=2 * CAP)
    pages = outgoings(range(400))
    written = tier.write([], pages)
    kept = [page for page, stored in zip(pages, written.stored, strict=True) if stored]
    assert 20 < len(kept) < 300
    reasons = {reason.partition(": the file system of ")[0] for reason in written.reasons}
    assert reasons == {"", os.strerror(errno.ENOSPC)}
    assert keys_in(tier) == {page.key for page in kept}
    assert outcomes(tier, kept) == {ReadOutcome.EXACT}
    dropped = [page.key for page in kept[:60]]
    assert tier.write(dropped, []).undropped == ""
    more = outgoings(range(1000, 1010))
    kept = [page for page, stored in zip(more, tier.write([], more).stored, strict=True) if stored]
    assert kept
    tier.close()
    tier = small_tier(folder, cap=2 * CAP)
    assert tier.state().opened == "as it was left"
    assert outcomes(tier, kept) == {ReadOutcome.EXACT}
    tier.close()


def test_no_room_to_create_the_tier(tmpfs: Callable[..., Path]) -> None:
    folder = tmpfs("16k") / "tier"
    with pytest.raises(TierError, match=r"cannot be used by the disk tier: .*No space left"):
        small_tier(folder)


def test_a_read_only_file_system(tmpfs: Callable[..., Path]) -> None:
    folder = tmpfs("1m", "ro") / "tier"
    with pytest.raises(TierError, match="Read-only file system"):
        small_tier(folder)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise error

    return fail


def failing(number: int) -> Callable[..., Any]:
    """Returns a function that raises LMDB's error for a system call that failed."""
    error = lmdb.Error("mdb_txn_commit: it failed")
    error.code = number  # type: ignore[misc]  # py-lmdb sets it in C
    return raising(error)


def proven_tier(folder: Path) -> DiskStore:
    """Returns a tier that was verified when it was opened, with its pages."""
    doubt(folder)
    tier = small_tier(folder)
    assert "proven sound" in tier.state().opened
    return tier


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_failing_transaction_is_reported_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    tier = small_tier(tmp_path)
    old = outgoings(range(10))
    tier.write([], old)
    tier.close()
    tier = proven_tier(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "put", failing(number))
        written = tier.write([], outgoings(range(100, 110)))
    assert set(written.stored) == {False}
    assert all("it failed" in reason for reason in written.reasons)
    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "delete", failing(number))
        assert "it failed" in tier.write([old[0].key], []).undropped
    assert keys_in(tier) == {page.key for page in old}
    assert all(tier.write([], outgoings(range(100, 110))).stored)
    tier.close()


def test_a_failed_drop_is_retried(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the page would take room until the next worker, after each trouble of the disk."""
    pages = outgoings(range(10))
    tier.write([], pages)
    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "delete", failing(errno.EROFS))
        assert tier.write([pages[0].key], []).undropped
        assert tier.write([pages[1].key], []).undropped
        patch.undo()
        patch.setattr(tier._journal, "mark_dirty", raising(NO_SPACE))
        assert tier.write([pages[2].key], []).undropped
    assert keys_in(tier) == {page.key for page in pages}
    assert tier.write([], [outgoing(100)]).undropped == ""
    assert keys_in(tier) == {page.key for page in [*pages[3:], outgoing(100)]}


def test_a_page_that_is_stored_again_is_not_dropped(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = outgoings(range(10))
    tier.write([], pages)
    delete = LmdbEnvironment.delete

    def but_not(environment: Any, txn: Any, key: bytes) -> None:
        if key == pages[1].key:
            failing(errno.EROFS)()
        delete(environment, txn, key)

    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "delete", failing(errno.EROFS))
        assert tier.write([pages[0].key, pages[1].key], []).undropped
        patch.setattr(LmdbEnvironment, "delete", but_not)
        written = tier.write([], [pages[0]])
        assert written.stored == (True,)
        assert written.undropped
    assert tier.write([], []).undropped == ""
    assert keys_in(tier) == {page.key for page in pages} - {pages[1].key}


@pytest.mark.parametrize("call", ["put", "delete"])
def test_an_io_error_may_be_damage_if_nothing_was_verified(
    tier: DiskStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    tier.write([], outgoings(range(10)))
    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, call, failing(errno.EIO))
        with pytest.raises(TierError, match=r"cannot be written \(mdb_txn_commit: it failed\): the next disk worker"):
            tier.write([outgoing(1).key], outgoings(range(100, 110)))


def test_a_broken_environment_ends_the_tier(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:

    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "put", raising(lmdb.PanicError("mdb_txn_begin", -30795)))
        with pytest.raises(TierError, match="its disk failed"):
            tier.write([], outgoings(range(10)))


@pytest.mark.usefixtures("each_store")
def test_a_failing_state_file_rejects_pages(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:

    with monkeypatch.context() as patch:
        patch.setattr(tier._journal, "_write", raising(NO_SPACE))
        written = tier.write([b"k" * KEY_BYTES], [outgoing(1)])
    assert written.stored == (False,)
    assert "No space left" in written.reasons[0]
    assert written.undropped
    assert all(tier.write([], [outgoing(1)]).stored)


def test_a_read_error_is_a_miss_and_the_page_stays(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write([], [outgoing(1)])

    with monkeypatch.context() as patch:
        for environment in tier._environments:
            assert isinstance(environment, LmdbEnvironment)
            patch.setattr(environment.reader, "read", raising(OSError(errno.EIO, "Input/output error")))
        assert outcome_of(tier, outgoing(1)) is ReadOutcome.FAILED
    assert outcome_of(tier, outgoing(1)) is ReadOutcome.EXACT
    assert tier.state().damaged == 0


@pytest.mark.usefixtures("each_store")
def test_readers_beside_a_writer_read_whole_pages(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    stays = outgoings(range(40))
    tier.write([], stays)
    wrong: list[ReadOutcome] = []
    seen = 0
    ends = threading.Event()

    def read() -> None:
        nonlocal seen
        while not ends.is_set():
            wrong.extend(outcomes(tier, stays) - {ReadOutcome.EXACT})
            changing = outcomes(tier, outgoings(range(100, 160)))
            wrong.extend(changing - {ReadOutcome.EXACT, ReadOutcome.ABSENT})
            seen += ReadOutcome.EXACT in changing

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    pages = outgoings(range(100, 160))
    while seen < SEEN and not wrong and all(reader.is_alive() for reader in readers):
        assert all(tier.write([], pages).stored)
        tier.write([page.key for page in pages], [])
    ends.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and seen >= SEEN
    assert tier.state().damaged == 0
    tier.close()


@pytest.mark.usefixtures("each_store")
def test_a_file_that_grows_during_the_check_is_not_reported_as_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found once under load: a worker ended over it, and the next one had to verify the tier."""
    tier = small_tier(tmp_path, environments=1)
    numbers, fstat, before = iter(range(1000)), os.fstat, tier.state().file_bytes

    def stat_before_it_grew(descriptor: int) -> os.stat_result:
        seen = fstat(descriptor)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", fstat)
            tier.write([], [outgoing(next(numbers)) for _ in range(10)])
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", stat_before_it_grew)
        assert tier.state().file_bytes > before
    tier.close()


def test_a_writer_gives_way_for_a_bounded_time(virtual_clock: VirtualClock) -> None:
    readers, began = ReaderCount(), virtual_clock.now
    patience = Patience(readers, 0.05)
    with readers.reading():
        for _ in range(100):
            patience.give_way()
    assert virtual_clock.now - began == pytest.approx(0.05)
    began = virtual_clock.now
    Patience(readers, 5.0).give_way()
    assert virtual_clock.now == began
