"""LMDB's count of frames is wrong, or is not that of the headers: it is found, and costs no more than its part."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from damage_of_disk.anatomy import Anatomy
from pagetier.tiers.base import Outcome, TierError
from pagetier.tiers.store import reading
from tier_pages import keys_in, outcomes, outgoings, small_tier

PAGES = outgoings(range(40))


def left(folder: Path, environments: int = 1) -> None:
    """A closed tier that holds PAGES."""
    tier = small_tier(folder, environments=environments)
    assert all(tier.write([], PAGES).stored)
    tier.close()


def recount(file: Path, bit: int) -> None:
    """A bit of LMDB's count of frames is another."""
    at = Anatomy(file.read_bytes()).frames_counted_at + bit // 8
    with file.open("r+b") as opened:
        opened.seek(at)
        (byte,) = opened.read(1)
        opened.seek(at)
        opened.write(bytes([byte ^ 1 << bit % 8]))


def found(folder: Path) -> str:
    """How it is found, by the worker that can open it: the first or the next one. It goes on, and is believed then."""
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
    assert outcomes(tier, more) == {Outcome.EXACT}
    tier.close()
    tier = small_tier(folder)
    assert tier.state().opened == "as it was left"
    tier.close()
    return how


@pytest.mark.parametrize("bit", [0, 1, 5, 8, 16, 32, 63])
def test_a_wrong_count_of_frames_costs_only_its_own_part(in_memory: Path, bit: int) -> None:
    """Too many: nothing would be stored any more, for ever. Too few: the same, when it is emptied below nothing."""
    left(in_memory, environments=2)
    recount(in_memory / "1" / "data.mdb", bit)
    assert found(in_memory).startswith("rebuilt empty in 1 of 2 parts: ")


def test_frames_of_no_header_cost_only_their_own_part(in_memory: Path) -> None:
    """To LMDB that is sound. The next worker must not believe it again, as the one after it would, and so on."""
    left(in_memory, environments=2)
    with lmdb.open(str(in_memory / "0"), max_dbs=4) as env, env.begin(write=True) as txn:
        cursor = txn.cursor(env.open_db(b"pages", txn))
        assert cursor.first()
        assert cursor.delete()
    how = found(in_memory)
    assert how.startswith("rebuilt empty in 1 of 2 parts: it counts ")


def test_a_wrong_count_is_found_while_it_is_open(in_memory: Path) -> None:
    tier = small_tier(in_memory, environments=1)
    assert all(tier.write([], PAGES).stored)
    recount(in_memory / "0" / "data.mdb", 20)
    with pytest.raises(TierError, match=r"it counts .* frames instead of"):
        tier.write([], outgoings(range(1000, 1001)))
    tier.close()


def test_pages_without_frames_and_a_wrong_count_cost_only_their_own_part(in_memory: Path) -> None:
    """No header says any more how many there are: there is no room when all that can be dropped is dropped."""
    left(in_memory)
    file = in_memory / "0" / "data.mdb"
    recount(file, 40)
    data = file.read_bytes()
    for page in PAGES:
        size, stamp = page.size.to_bytes(8, "little"), page.stamp.to_bytes(8, "little")
        data = data.replace(size + stamp, (page.size + 4096).to_bytes(8, "little") + stamp)
    file.write_bytes(data)
    tier = small_tier(in_memory, environments=1)
    assert tier.state().opened.startswith("rebuilt empty: LMDB refuses it (it counts ")
    assert all(tier.write([], PAGES).stored)
    tier.close()


def test_a_list_of_what_is_changed_meanwhile_is_whole(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that came after the first batch are in no header of it."""
    left(in_memory)
    monkeypatch.setattr(reading, "BATCH", 10)
    tier = small_tier(in_memory, environments=1)
    contents = tier.contents()
    assert len(next(contents)) == 10
    assert all(tier.write([PAGES[0].key], outgoings(range(1000, 1002))).stored)
    assert sum(map(len, contents)) >= 29
    assert len(keys_in(tier)) == 41
    tier.close()
