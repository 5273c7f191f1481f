"""Tests populating: each byte once, in parallel, stopping and failing cleanly, also on a too small tmpfs."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventually import PATIENCE_S
from pagetier.daemon.host.prefault import PrefaultError, prefault
from refused_threads import allow_threads

MIB = 1 << 20


def nothing(offset: int, length: int) -> None:
    pass


# --- the work ---------------------------------------------------------------------------------------------------


@settings(deadline=None)  # threads
@given(total=st.integers(0, 1000), chunk=st.integers(1, 200), threads=st.integers(0, 5))
def test_every_byte_is_populated_once(total: int, chunk: int, threads: int) -> None:
    parts: list[tuple[int, int]] = []
    seen: list[tuple[int, int]] = []

    result = prefault(
        lambda offset, length: parts.append((offset, length)),
        total,
        threads=threads,
        chunk=chunk,
        progress=lambda done, whole: seen.append((done, whole)),
    )
    assert result.complete
    assert result.nbytes == total
    covered = [byte for offset, length in sorted(parts) for byte in (offset, offset + length)]
    assert covered[:1] + covered[-1:] == ([0, total] if total else [])
    assert all(end == start for end, start in zip(covered[1:-1:2], covered[2::2], strict=True))
    assert all(0 < length <= chunk for _, length in parts)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[0] == (0, total)
    assert seen[-1] == (total, total)


def test_threads_run_concurrently_and_only_the_caller_reports_progress() -> None:
    together = threading.Barrier(4, timeout=PATIENCE_S)
    heard_by: set[int] = set()

    def populate(offset: int, length: int) -> None:
        together.wait()

    result = prefault(populate, 8, threads=4, chunk=1, progress=lambda *_: heard_by.add(threading.get_ident()))
    assert result.threads == 4
    assert heard_by == {threading.get_ident()}


@pytest.mark.parametrize("allowed", [0, 2])
def test_threads_that_cannot_be_started_are_done_without(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_threads(allowed, monkeypatch)
    watching = threading.Event()
    parts: list[tuple[int, int]] = []

    def populate(offset: int, length: int) -> None:
        assert watching.wait(PATIENCE_S)  # so that no thread is free for the next ones' work
        parts.append((offset, length))

    result = prefault(populate, 10, threads=4, chunk=3, progress=lambda *_: watching.set())
    assert result.complete
    assert sorted(parts) == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert result.threads == max(1, allowed)


def test_there_are_no_more_threads_than_chunks_by_default() -> None:
    alone = prefault(nothing, 100, chunk=100)
    assert alone.threads == 1 and str(alone).endswith("/s, 1 thread")
    assert prefault(nothing, 100, chunk=1).threads <= len(os.sched_getaffinity(0))
    assert prefault(nothing, 100, threads=3, chunk=100).threads == 3


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOMEM, "memory ran out (ENOMEM"),
        (errno.EFAULT, "memory ran out (EFAULT"),
        (errno.EINVAL, 'arena.prefault = "lazy"'),
        (errno.EIO, "the kernel refused (EIO: Input/output error)"),
    ],
)
def test_a_failure_in_the_middle_stops_it_and_says_why(number: int, words: str) -> None:
    calls = itertools.count()

    def populate(offset: int, length: int) -> None:
        if next(calls) >= 3:
            raise OSError(number, os.strerror(number))

    with pytest.raises(PrefaultError) as caught:
        prefault(populate, 1000 * MIB, threads=1, chunk=MIB)
    assert words in str(caught.value)
    assert "after 3.0 MiB of 1000.0 MiB" in str(caught.value)
    assert (caught.value.errno, caught.value.nbytes) == (number, 3 * MIB)
    assert isinstance(caught.value.__cause__, OSError)
    assert next(calls) < 1000


def test_other_errors_are_raised_unchanged() -> None:
    def populate(offset: int, length: int) -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        prefault(populate, 100, threads=2, chunk=1)


def test_populating_can_be_stopped() -> None:
    stop = threading.Event()

    def populate(offset: int, length: int) -> None:
        if offset >= 100:
            assert stop.wait(PATIENCE_S)

    def progress(done: int, total: int) -> None:
        if done >= 5:
            stop.set()

    result = prefault(populate, 2000, threads=2, chunk=1, progress=progress, stop=stop)
    assert 5 <= result.nbytes <= 102
    assert not result.complete
    assert prefault(populate, 2000, threads=1, chunk=1, stop=stop).nbytes == 0


def test_no_thread_is_left_when_the_listener_fails() -> None:
    failed = threading.Event()

    def populate(offset: int, length: int) -> None:
        if offset:
            assert failed.wait(PATIENCE_S)

    def progress(done: int, total: int) -> None:
        if done:
            failed.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefault(populate, 2000, threads=2, chunk=1, progress=progress)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefault")]


def test_the_result_reads_well() -> None:
    text = str(prefault(nothing, 3 * MIB, threads=2))
    assert re.fullmatch(r"3\.0 MiB of 3\.0 MiB populated in \d+\.\d s, .* [KMGT]iB/s, 2 threads", text)


# --- real memory ------------------------------------------------------------------------------------------------

TOO_SMALL = """
import mmap, os, subprocess, sys
from pagetier.daemon.host.prefault import PrefaultError, prefault
folder = sys.argv[1]
if subprocess.call(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder], stderr=subprocess.DEVNULL):
    sys.exit(77)
fd = os.open(folder + "/arena", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 64 << 20)
arena = mmap.mmap(fd, 64 << 20)
try:
    prefault(lambda offset, length: arena.madvise(23, offset, length), 64 << 20, threads=2, chunk=1 << 20)
except PrefaultError as error:
    print(error)
    sys.exit(3)
"""


def test_a_tmpfs_that_fills_up_is_an_error_and_no_sigbus(tmp_path: Path) -> None:
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", TOO_SMALL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 77 or "unshare" in done.stderr or "lazy" in done.stdout:
        pytest.skip("no mount namespaces here, or an old kernel")
    assert done.returncode == 3, done.stderr
    message = r"memory ran out \(EFAULT: .*\), after 1[0-6]\.0 MiB of 64\.0 MiB were populated\n"
    assert re.fullmatch(message, done.stdout)


def test_a_real_mapping_is_in_memory_afterwards() -> None:
    fd = os.memfd_create("pagetier-test")
    os.ftruncate(fd, 8 * MIB)
    with mmap.mmap(fd, 8 * MIB) as mapping:
        assert os.fstat(fd).st_blocks == 0
        try:
            prefault(lambda offset, length: mapping.madvise(23, offset, length), len(mapping), threads=2, chunk=MIB)
        except PrefaultError as error:
            pytest.skip(str(error))
        assert os.fstat(fd).st_blocks * 512 == len(mapping)
    os.close(fd)
