"""Tests that what is known of lookups outlives a stop that releases the memory, in the disk tier."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from disk_daemon import FRAMES, IN_FILES, IN_LMDB, DiskDaemon
from lookup_advice import advice, advice_after, serve
from running_daemon import namespace

PROMPTS = (1, 2, 1, 3, 2, 1)
STORES = pytest.mark.parametrize("store", [IN_LMDB, IN_FILES], ids=["lmdb", "files"])


def serve_all(daemon: DiskDaemon) -> None:
    with daemon.client() as client:
        for prompt in PROMPTS:
            serve(client, namespace().keys([prompt, *range(64)]))


def saved_by(daemon: DiskDaemon) -> Path:
    """Stops the daemon and returns the file."""
    assert daemon.stop() == 0
    assert not daemon.leftovers()
    return daemon.disk / "lookups"


@STORES
def test_lookups_outlive_a_stop(store: Sequence[str]) -> None:
    with DiskDaemon(FRAMES, "64MiB", *store) as daemon:
        serve_all(daemon)
        before = advice_after(daemon, len(PROMPTS))
        saved = saved_by(daemon)
        assert saved.stat().st_mode & 0o777 == 0o600
        for lives in range(1, 3):
            daemon.open()
            after = advice_after(daemon, lives * len(PROMPTS))
            assert not saved.exists(), "it is read once"
            if lives == 1:
                for name in ("hit_ratio", "endless_hit_ratio"):
                    assert after["total"][name] == pytest.approx(before["total"][name], rel=1e-3)
                assert [ratio for _, ratio in after["curve"]] == pytest.approx([ratio for _, ratio in before["curve"]])
                assert [one["namespace"] for one in after["namespaces"]] == [namespace().name]
            assert not any(daemon.snapshot().absent.shares()), "counters begin with the segments"
            serve_all(daemon)
            advice_after(daemon, (lives + 1) * len(PROMPTS))
            if lives == 1:
                saved_by(daemon)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(7).randrange(len(data))] ^= 16
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def _another_format(path: Path) -> None:
    path.write_bytes(bytes(8) + path.read_bytes()[8:])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("mutilate", "store"),
    [
        (_flip, IN_LMDB),
        *((mutilate, IN_FILES) for mutilate in (_flip, _cut, _another_format, _replace_by_folder, _empty)),
    ],
)
def test_a_damaged_file_is_ignored_with_one_line(mutilate: Callable[[Path], None], store: Sequence[str]) -> None:
    with DiskDaemon(FRAMES, "64MiB", *store) as daemon:
        serve_all(daemon)
        advice_after(daemon, len(PROMPTS))
        mutilate(saved_by(daemon))
        daemon.open()
        assert advice(daemon) is None
        assert len(daemon.lines("event=lookups_dropped")) == 1, daemon.log.read_text()
        serve_all(daemon)
        advice_after(daemon, len(PROMPTS))


def test_a_tier_without_room_keeps_its_size() -> None:
    with DiskDaemon(FRAMES, "4MiB", "--constant", "disk.environments=1") as daemon:
        serve_all(daemon)
        advice_after(daemon, len(PROMPTS))
        filler = daemon.disk / "lookups.tmp"
        filler.write_bytes(bytes(4 << 20))
        assert not saved_by(daemon).exists()
        (line,) = daemon.lines("event=lookups_not_saved")
        assert "0 B of disk.size are left" in line
