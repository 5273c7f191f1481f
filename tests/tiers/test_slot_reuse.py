"""The files store reuses a slot when nothing names or reads it any more, and no step can be left half done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from child_process import DIED, in_child
from files_store import fill, only, opened, slots_of
from pagetier.tiers.base import ReadOutcome
from pagetier.tiers.disk import environment as disk_environment
from pagetier.tiers.frame_files import FilesStore, direct_files, files_environment
from store_pages import keys_in, outcome_of, outcomes, outgoing, outgoings


def raising_at(name: str) -> Callable[[str], None]:
    """Returns a failpoint that raises."""

    def point(met: str) -> None:
        if met == name:
            raise OSError(errno.EINTR, f"interrupted at {name}")

    return point


def test_a_slot_is_not_reused_while_it_is_read(files: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    page, reading, may_end = outgoing(1), threading.Event(), threading.Event()
    files.write([], [page])
    old = set(slots_of(files, page))
    preadv = os.preadv

    def slow(*arguments: Any) -> int:
        reading.set()
        assert may_end.wait(60)
        return preadv(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(files_environment, "READERS_S", 0.01)
    with ThreadPoolExecutor(1) as threads:
        outcome = threads.submit(outcome_of, files, page)
        assert reading.wait(60)
        assert files.write([page.key], []).undropped == ""
        assert files.state().used_frames == 0
        others = fill(files, 100)
        assert old.isdisjoint(slot for other in others for slot in slots_of(files, other))
        may_end.set()
        assert outcome.result() is ReadOutcome.EXACT
    monkeypatch.undo()
    files.write([others[0].key], [])
    more = fill(files, 5000)
    assert old <= {slot for page in more for slot in slots_of(files, page)}
    assert outcomes(files, [*others[1:], *more]) == {ReadOutcome.EXACT}


def test_a_record_follows_its_bytes(files: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a page is replaced: until the commit its record names the old bytes."""
    files.write([], outgoings(range(5)))
    seen: list[tuple[str, int]] = []
    pwritev = os.pwritev

    def written(*arguments: Any) -> int:
        seen.append(("bytes", len(keys_in(files))))
        assert outcomes(files, outgoings(range(5))) == {ReadOutcome.EXACT}
        return pwritev(*arguments)

    monkeypatch.setattr(os, "pwritev", written)
    monkeypatch.setattr(
        disk_environment, "point", lambda name: seen.append((name, 0)) if name == "store.committed" else None
    )
    assert all(files.write([], [outgoing(4, version=1), *outgoings(range(10, 13))]).stored)
    assert seen == [("bytes", 5), ("store.committed", 0)]


@pytest.mark.parametrize("replace", [False, True])
def test_a_slot_is_not_reused_before_its_deletion_is_committed(
    files: FilesStore, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    pages = outgoings(range(20))
    files.write([], pages)
    with monkeypatch.context() as patch:
        patch.setattr(disk_environment, "point", raising_at("store.changed"))
        if replace:
            assert files.write([], [outgoing(3, version=1)]).stored == (False,)
        else:
            with pytest.raises(OSError, match="interrupted"), only(files).changing() as txn:
                only(files).delete(txn, pages[3].key)
    others = fill(files, 100)
    assert len(others) == files.capacity // 3 - 20
    assert outcomes(files, [*pages, *others]) == {ReadOutcome.EXACT}


def test_a_sync_makes_bytes_durable_before_records(files: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write([], outgoings(range(5)))
    seen: list[str] = []
    real, fdatasync = only(files)._env, os.fdatasync

    def synced(file: int) -> None:
        seen.append("bytes")
        fdatasync(file)

    monkeypatch.setattr(os, "fdatasync", synced)

    class Recorded:
        def sync(self, force: bool) -> None:
            seen.append("records")
            real.sync(force)

    monkeypatch.setattr(only(files), "_env", Recorded())
    files.sync()
    monkeypatch.undo()
    assert seen == ["bytes", "records"]


@pytest.mark.parametrize("name", ["frames.written", "store.changed", "store.committed"])
def test_a_death_between_the_steps_loses_and_leaks_nothing(tmp_path: Path, name: str) -> None:
    pages = outgoings(range(20))

    def die() -> None:
        tier = opened(tmp_path)
        tier.write([], pages)
        for module in (direct_files, disk_environment):
            module.point = lambda met: os._exit(DIED) if met == name else None  # type: ignore[attr-defined]
        tier.write([pages[0].key], outgoings(range(100, 300)))

    assert in_child(die) == DIED
    with closing(opened(tmp_path)) as tier:
        assert tier.state().opened == "as it was left"
        found = keys_in(tier)
        assert found >= {page.key for page in pages[1:]}
        assert tier.state().used_frames == 3 * len(found)
        assert outcomes(tier, [page for page in outgoings(range(300)) if page.key in found]) == {ReadOutcome.EXACT}
        fill(tier, 1000)
        assert tier.state().used_frames > tier.capacity - 3
