"""A start asks the disk for pages of other settings in a child process, because the disk may hang."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb
import msgspec
import pytest

from pagetier.daemon.config.disk_options import DeviceOptions
from pagetier.daemon.unreadable_pages import in_child, unreadable_pages
from pagetier.tiers.disk.recovery import State


def test_the_answer_is_that_of_the_function() -> None:
    assert in_child(lambda: f"not {os.getpid()}", 60.0) not in ("", f"not {os.getpid()}")


def test_a_function_that_fails_has_no_answer() -> None:
    assert in_child(lambda: f"{1 // 0}", 60.0) == ""


def test_a_disk_that_hangs_keeps_no_start_waiting() -> None:
    reader, writer = os.pipe()
    try:
        assert in_child(lambda: str(os.read(reader, 1)), 0.01) == ""
    finally:
        os.close(reader)
        os.close(writer)


def test_a_file_that_would_make_a_reader_wait_is_not_opened_and_one_that_cannot_be_read_may_have_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State(format=2, frame_bytes=4096, environments=2, boot="", clean=True, store="files")
    (tmp_path / "state").write_bytes(msgspec.json.encode(state))
    device = DeviceOptions(tmp_path, 1 << 30, 2, "files")
    (tmp_path / "0").mkdir()
    os.mkfifo(tmp_path / "0" / "data.mdb")
    assert unreadable_pages(device, 65536) == ""
    (tmp_path / "1").mkdir()
    with lmdb.open(str(tmp_path / "1"), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value", db=env.open_db(b"pages", txn))
    had = f"the disk tier in {tmp_path} has {{}} with arena.frame_size = 4KiB, not arena.frame_size = 64KiB"
    assert unreadable_pages(device, 65536) == had.format("1 page")
    monkeypatch.setattr(lmdb, "open", lambda *_, **__: os.fstat(-1))
    assert unreadable_pages(device, 65536) == had.format("pages that cannot be counted")
