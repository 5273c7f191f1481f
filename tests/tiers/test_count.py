"""A wrong count of frames, in LMDB or in the headers, is detected and costs only its own environment."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from disk_corruption.file_anatomy import Anatomy
from file_changes import flip_bit
from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.disk import reader
from store_pages import keys_in, outcomes, outgoings, small_tier

PAGES = outgoings(range(40))


def left(folder: Path, environments: int = 1) -> None:
    """Leaves a closed tier that holds PAGES."""
    tier = small_tier(folder, environments=environments)
    assert all(tier.write([], PAGES).stored)
    tier.close()


def recount(file: Path, bit: int) -> None:
    """Flips a bit of LMDB's count of frames."""
    flip_bit(file, Anatomy(file.read_bytes()).counted_at, bit)


def found(folder: Path) -> str:
    """Returns how the first or the next worker finds the tier, which then works and is trusted."""
    tier = small_tier(folder)
    try:
        keys_in(tier)
    except TierError as error:
        assert "headers name" in str(error)
        tier.close()
        tier = small_tier(folder)
    how = tier.state().opened
    assert len(keys_in(tier)) == tier.state().used_frames // 3
    more = outgoings(range(1000, 1020))
    assert all(tier.write([], more).stored)
    assert outcomes(tier, more) == {ReadOutcome.EXACT}
    tier.close()
    tier = small_tier(folder)
    assert tier.state().opened == "as it was left"
    tier.close()
    return how


@pytest.mark.parametrize("bit", [0, 1, 5, 8, 16, 32, 63])
def test_a_wrong_count_of_frames_costs_only_its_environment(in_memory: Path, bit: int) -> None:
    """Too many: nothing would be stored any more. Too few: the same, once the tier is emptied."""
    left(in_memory, environments=2)
    recount(in_memory / "1" / "data.mdb", bit)
    assert found(in_memory).startswith("rebuilt empty in 1 of 2 parts: ")


def test_frames_without_header_cost_only_their_environment(in_memory: Path) -> None:
    """LMDB considers such a file sound. The next worker must not trust it again, nor the one after it."""
    left(in_memory, environments=2)
    with lmdb.open(str(in_memory / "0"), max_dbs=4) as env, env.begin(write=True) as txn:
        cursor = txn.cursor(env.open_db(b"pages", txn))
        assert cursor.first()
        assert cursor.delete()
    how = found(in_memory)
    assert how.startswith("rebuilt empty in 1 of 2 parts: it counts ")


def test_a_wrong_count_is_detected_while_the_tier_is_open(in_memory: Path) -> None:
    tier = small_tier(in_memory, environments=1)
    assert all(tier.write([], PAGES).stored)
    recount(in_memory / "0" / "data.mdb", 20)
    with pytest.raises(TierError, match=r"it counts .* frames instead of"):
        tier.write([], outgoings(range(1000, 1001)))
    tier.close()


def test_pages_without_frames_and_a_wrong_count_cost_only_their_environment(in_memory: Path) -> None:
    """No header names these frames: no room is left when everything that can be dropped is dropped."""
    left(in_memory)
    file = in_memory / "0" / "data.mdb"
    recount(file, 40)
    data = file.read_bytes()
    for page in PAGES:
        size, stamp = page.size.to_bytes(8, "little"), page.stamp.to_bytes(8, "little")
        data = data.replace(size + stamp, (page.size + 4096).to_bytes(8, "little") + stamp)
    file.write_bytes(data)
    tier = small_tier(in_memory, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: LMDB rejects it (it counts ")
    assert all(tier.write([], PAGES).stored)
    tier.close()


def test_a_listing_beside_changes_is_complete(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that came after the first batch are in no header of it."""
    left(in_memory)
    monkeypatch.setattr(reader, "BATCH", 10)
    tier = small_tier(in_memory, environments=1)
    contents = tier.contents()
    assert len(next(contents)) == 10
    assert all(tier.write([PAGES[0].key], outgoings(range(1000, 1002))).stored)
    assert sum(map(len, contents)) >= 29
    assert len(keys_in(tier)) == 41
    tier.close()
