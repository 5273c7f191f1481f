"""What is known of lookups in a tier's folder: written whole or not at all, read once, within the cap."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pagetier.tiers.capacity import shape_of
from pagetier.tiers.disk import saved_lookups

MIB = 1 << 20
DATA = bytes(range(256)) * 400


def test_it_is_read_once(tmp_path: Path) -> None:
    assert saved_lookups.take(tmp_path) is None
    for data in (DATA, b"other"):
        saved_lookups.save(tmp_path, data, MIB)
    assert [path.name for path in tmp_path.iterdir()] == [saved_lookups.NAME]
    assert saved_lookups.take(tmp_path) == b"other"
    assert saved_lookups.take(tmp_path) is None and not list(tmp_path.iterdir())


def test_a_write_that_was_interrupted_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / saved_lookups.BESIDE).write_bytes(DATA[:77])
    assert saved_lookups.take(tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [saved_lookups.NAME, saved_lookups.BESIDE])
def test_links_are_not_followed(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, folder = tmp_path / "target", tmp_path / "tier"
    target.write_bytes(DATA)
    folder.mkdir()
    (folder / name).symlink_to(target)
    assert saved_lookups.take(folder) is None
    (folder / name).unlink(missing_ok=True)
    (folder / saved_lookups.BESIDE).symlink_to(target)
    saved_lookups.save(folder, b"new", MIB)
    assert target.read_bytes() == DATA
    assert "was not saved" in caplog.text


def test_it_counts_for_the_cap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (tmp_path / "frames.0").open("wb") as file:
        file.truncate(MIB)  # a length counts, be it of blocks or of a hole
    with caplog.at_level(logging.WARNING):
        saved_lookups.save(tmp_path, DATA, MIB + len(DATA))
    assert "of disk.size are left" in caplog.text and len(list(tmp_path.iterdir())) == 1
    saved_lookups.save(tmp_path, DATA, 2 * MIB)
    assert saved_lookups.take(tmp_path) == DATA


@pytest.mark.parametrize("environments", [1, 4])
def test_a_large_tier_of_files_leaves_room_for_it(environments: int) -> None:
    shape = shape_of("files", 1 << 30, environments, 1 << 16, 8 << 20)
    assert (1 << 30) - environments * shape.share_bytes >= 5 * MIB // 4
