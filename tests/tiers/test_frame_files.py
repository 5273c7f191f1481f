"""The files of frames: past the page cache, in steps, in several files, with failing calls."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from files_store import fill, only, opened, slots_of
from pagetier.tiers.base import Outgoing, ReadOutcome, TierError
from pagetier.tiers.capacity import frames_under
from pagetier.tiers.disk import writer
from pagetier.tiers.disk.read_priority import ReaderCount
from pagetier.tiers.disk.recovery import read_state
from pagetier.tiers.frame_files import FilesStore, direct_files
from pagetier.tiers.lmdb import LmdbStore
from store_pages import CAP, FRAME, bytes_in, keys_in, outcome_of, outcomes, outgoing, outgoings

GIB = 1 << 30
_PAGES = {1: 2, 2: 2, 3: 64}  # the frames of each: the first one warms up


def test_frames_pass_by_the_page_cache(files: FilesStore, tmp_path: Path) -> None:
    pages = outgoings(range(200))
    assert all(files.write([], pages).stored)
    assert outcomes(files, pages) == {ReadOutcome.EXACT}
    if only(files).files.buffered:
        pytest.skip("the file system refuses O_DIRECT")
    assert cached_pages(tmp_path / "tier" / "0" / "frames.0") == 0


def cached_pages(path: Path) -> int:
    """Returns how many pages of a file are in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        seen = (ctypes.c_ubyte * (len(memory) // mmap.PAGESIZE))()
        begin = ctypes.c_char.from_buffer(memory)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(begin)), ctypes.c_size_t(len(memory)), seen) == 0
        del begin
    return sum(one & 1 for one in seen)


@pytest.mark.parametrize("at_open", [True, False])
def test_where_direct_access_is_refused_frames_are_buffered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_open: bool
) -> None:
    """Some file systems refuse when a file is opened, others when it is used."""
    name = "open" if at_open else "pwritev"
    real = getattr(os, name)
    refused = []

    def refuse(target: Any, argument: Any, *more: Any, **named: Any) -> int:
        direct = argument & os.O_DIRECT if at_open else _is_direct(target)
        if direct:
            refused.append(target)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        done: int = real(target, argument, *more, **named)
        return done

    monkeypatch.setattr(os, name, refuse)
    with closing(opened(tmp_path)) as tier:
        pages = outgoings(range(50))
        assert all(tier.write([], pages).stored)
        assert outcomes(tier, pages) == {ReadOutcome.EXACT}
        assert refused
        assert "go through the page cache" in tier.state().note


def _is_direct(descriptor: int) -> bool:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return bool(int(text.split("flags:")[1].split()[0], 8) & os.O_DIRECT)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_write_rejects_pages_and_gives_their_slots_back(
    files: FilesStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    old = outgoings(range(20))
    files.write([], old)

    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        written = files.write([], outgoings(range(100, 110)))
    assert set(written.stored) == {False}
    assert os.strerror(number) in written.reasons[0]
    assert files.state().used_frames == 60
    assert outcomes(files, old) == {ReadOutcome.EXACT}
    assert len(fill(files, 200)) == files.capacity // 3 - 20


def test_short_writes_and_reads_continue(files: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pwritev, preadv = os.pwritev, os.preadv

    def one(call: Callable[..., int]) -> Callable[..., int]:
        return lambda file, pieces, at: call(file, pieces[:1], at)

    monkeypatch.setattr(os, "pwritev", one(pwritev))
    monkeypatch.setattr(os, "preadv", one(preadv))
    pages = outgoings(range(10))
    assert all(files.write([], pages).stored)
    assert outcomes(files, pages) == {ReadOutcome.EXACT}


def test_a_page_of_many_frames_takes_as_many_calls_as_one_of_few(files: FilesStore) -> None:
    files.write([page.key for page in fill(files, 100)], [])
    _, *writes = [_calls(partial(_write, files, outgoing(number, count * FRAME))) for number, count in _PAGES.items()]
    _, *reads = [
        _calls(partial(outcome_of, files, outgoing(number, count * FRAME))) for number, count in _PAGES.items()
    ]
    assert writes[0] == writes[1]
    assert reads[0] == reads[1]


def _write(tier: FilesStore, page: Outgoing) -> None:
    assert writer.apply(only(tier), [], [page], ReaderCount()).reasons == ("",)


def _calls(action: Callable[[], object]) -> int:
    """Returns how many functions and system calls the action takes in this thread."""
    calls = 0

    def count(_frame: FrameType, event: str, called: Any) -> None:
        nonlocal calls
        calls += event == "call" or (event == "c_call" and called.__module__ == os.open.__module__)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def test_a_read_error_is_a_miss_and_the_page_stays(files: FilesStore, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write([], [outgoing(1)])

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        assert outcome_of(files, outgoing(1)) is ReadOutcome.FAILED
    assert outcome_of(files, outgoing(1)) is ReadOutcome.EXACT
    files.write([outgoing(1).key], [])
    assert len(fill(files, 10)) == files.capacity // 3, "the failed read keeps its slots"


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_something_else_changed_ends_the_tier(tmp_path: Path, cut: bool) -> None:
    tier = opened(tmp_path)
    tier.write([], outgoings(range(20)))
    path = tmp_path / "tier" / "0" / "frames.0"
    if cut:
        os.truncate(path, FRAME)
    else:
        path.rename(path.with_name("elsewhere"))
        path.touch()
    with pytest.raises(TierError, match="cut while it was open" if cut else "replaced while it was open"):
        tier.write([], outgoings(range(100, 110)))
    with pytest.raises(TierError):
        tier.close()


def test_pages_lie_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_files, "FILE_BYTES", 100 * FRAME)
    with closing(opened(tmp_path)) as tier:
        pages = fill(tier, 0)
        assert outcomes(tier, pages) == {ReadOutcome.EXACT}
        assert len(list((tmp_path / "tier" / "0").glob("frames.*"))) == -(-tier.capacity // 100)
        assert bytes_in(tmp_path) <= CAP
    with closing(opened(tmp_path, CAP // 2)) as tier:
        kept = keys_in(tier)
        assert 0.8 * tier.capacity < tier.state().used_frames <= tier.capacity
        assert outcomes(tier, [page for page in pages if page.key in kept]) == {ReadOutcome.EXACT}
        assert bytes_in(tmp_path) <= CAP // 2
        assert tier.state().note == ""
    (tmp_path / "tier" / "0" / "frames.1").unlink()
    with closing(opened(tmp_path, CAP // 2)) as tier:
        left = [page for page in pages if page.key in kept]
        assert outcomes(tier, left) == {ReadOutcome.EXACT, ReadOutcome.DAMAGED}
        assert all(tier.write([], outgoings(range(5000, 5030))).stored)


def test_an_empty_tier_is_written_in_one_run(files: FilesStore) -> None:
    pages = outgoings(range(200))
    files.write([], pages)
    assert [slot for page in pages for slot in slots_of(files, page)] == list(range(600))


def test_a_tier_of_the_other_store_is_dropped_with_one_line(tmp_path: Path) -> None:
    for kind, other in ((LmdbStore, FilesStore), (FilesStore, LmdbStore)):
        with closing(kind(tmp_path / "tier", CAP, FRAME, 2)) as tier:
            assert all(tier.write([], outgoings(range(10))).stored)
        with closing(other(tmp_path / "tier", CAP, FRAME, 2)) as tier:
            assert tier.state().opened == f"rebuilt empty: store was {kind.KIND.STORE}, is {other.KIND.STORE}"
            assert keys_in(tier) == set()
        names = {path.name for path in (tmp_path / "tier" / "0").iterdir()}
        assert names == {"data.mdb", "lock.mdb"}
    state = read_state(tmp_path / "tier")
    assert state is not None
    assert state.store == "lmdb"


@pytest.mark.parametrize(("cap", "most"), [(20 * GIB, 1.1), (GIB, 1.15), (200 << 20, 1.3)])
def test_small_frames_cost_little_more_than_their_size(cap: int, most: float) -> None:
    assert cap / (4096 * frames_under("files", cap, 4, 4096)) <= most


def placed(pages: Sequence[Outgoing]) -> int:
    """Returns the number of frames of pages."""
    return sum(len(page.frames) for page in pages)


def test_the_promised_room_holds_for_pages_of_one_frame(tmp_path: Path) -> None:
    """They need the most records; random keys are dropped and stored, so that LMDB's trees are as large as they get."""
    with closing(opened(tmp_path)) as tier:
        pages = outgoings(range(tier.capacity), size=FRAME)
        assert placed(pages) == tier.capacity
        assert all(tier.write([], pages).stored)
        for first in range(0, 4 * tier.capacity, 100):
            old = [outgoing(number, FRAME).key for number in range(first, first + 100)]
            new = outgoings(range(first + tier.capacity, first + tier.capacity + 100), size=FRAME)
            assert all(tier.write(old, new).stored)
            assert bytes_in(tmp_path) <= CAP
        assert tier.state().used_frames == tier.capacity
