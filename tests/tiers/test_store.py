"""Pages in a tier on real LMDB: written, replaced, dropped, listed, read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.disk import file_format, writer
from pagetier.tiers.disk.store import DiskStore
from store_pages import (
    CAP,
    FRAME,
    OTHER,
    SPACE,
    bytes_in,
    keys_in,
    outcome_of,
    outcomes,
    outgoing,
    outgoings,
    small_tier,
)


@pytest.mark.usefixtures("each_store")
@pytest.mark.parametrize("size", [1, FRAME - 1, FRAME, FRAME + 1, 7 * FRAME, 300 * FRAME + 5])
def test_a_page_of_any_size_is_read_back_exactly(tier: DiskStore, size: int) -> None:
    page = outgoing(1, size)
    written = tier.write([], [page])
    assert (written.stored, written.reasons, written.undropped) == ((True,), ("",), "")
    assert written.disk_bytes > size
    assert outcome_of(tier, page) is ReadOutcome.EXACT
    assert tier.state().used_frames == -(-size // FRAME)


@pytest.mark.usefixtures("each_store")
def test_a_batch_wakes_only_the_environments_that_have_a_part_of_it(
    tier: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = Mock(wraps=writer.apply)
    monkeypatch.setattr(writer, "apply", apply)
    assert tier.write([], [outgoing(1)]).stored == (True,)
    assert tier.write([outgoing(1).key], []).undropped == ""
    assert tier.write([], []).stored == ()
    assert apply.call_count == 2


@pytest.mark.usefixtures("each_store")
def test_an_unknown_page_and_another_size_are_absent(tier: DiskStore) -> None:
    tier.write([], [outgoing(1, 5000)])
    assert outcome_of(tier, outgoing(2)) is ReadOutcome.ABSENT
    assert outcome_of(tier, outgoing(1, 5001)) is ReadOutcome.ABSENT
    assert outcome_of(tier, outgoing(1, 5000)) is ReadOutcome.EXACT


@pytest.mark.usefixtures("each_store")
def test_a_page_is_replaced_by_one_of_any_size(tier: DiskStore) -> None:
    tier.write([], [outgoing(1, 5 * FRAME)])
    tier.write([], [outgoing(1, 2 * FRAME, version=1)])
    assert outcome_of(tier, outgoing(1, 2 * FRAME), version=1) is ReadOutcome.EXACT
    assert tier.state().used_frames == 2
    assert len(keys_in(tier)) == 1


@pytest.mark.usefixtures("each_store")
def test_drops_come_first_and_unknown_keys_are_ignored(tier: DiskStore) -> None:
    pages = outgoings(range(10))
    tier.write([], pages)
    drops = [page.key for page in [*pages[:6], outgoing(99)]]
    written = tier.write([*drops, drops[0]], [pages[0], outgoing(50)])
    assert written.stored == (True, True)
    assert outcomes(tier, [pages[0], outgoing(50), *pages[6:]]) == {ReadOutcome.EXACT}
    assert outcomes(tier, pages[1:6]) == {ReadOutcome.ABSENT}
    assert tier.state().used_frames == 3 * 6


@pytest.mark.usefixtures("each_store")
def test_contents_list_sizes_stamps_and_namespaces(tier: DiskStore) -> None:
    pages = [outgoing(n, 100 + n, stamp=10**18 + n, space=(SPACE, OTHER)[n % 2]) for n in range(50)]
    tier.write([], pages)
    found = {page.key: (page.size, page.stamp, held.table[page.space]) for held in tier.contents() for page in held}
    assert found == {page.key: (page.size, page.stamp, page.space) for page in pages}


@pytest.mark.usefixtures("each_store")
def test_contents_list_the_namespaces_of_one_environment(in_memory: Path) -> None:
    with closing(small_tier(in_memory, environments=1)) as tier:
        pages = [outgoing(n, space=(SPACE, OTHER)[n % 2]) for n in range(20)]
        tier.write([], pages)
        found = {page.key: held.table[page.space] for held in tier.contents() for page in held}
        assert found == {page.key: page.space for page in pages}
        tier.write([page.key for page in pages[::2]], [])
        found = {page.key: held.table[page.space] for held in tier.contents() for page in held}
        assert found == {page.key: OTHER for page in pages[1::2]}


@pytest.mark.usefixtures("each_store")
def test_contents_leave_out_pages_of_a_damaged_namespace(tier: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tier.write([], outgoings(range(10)))
    monkeypatch.setattr(file_format, "makes_sense", lambda space: space != SPACE)
    assert not keys_in(tier)


@pytest.mark.usefixtures("each_store")
def test_contents_can_be_listed_beside_writes(tier: DiskStore) -> None:
    pages = outgoings(range(60))
    tier.write([], pages)
    for _ in tier.contents():
        tier.write([page.key for page in pages[:30]], [])
    assert keys_in(tier) == {page.key for page in pages[30:]}


@pytest.mark.usefixtures("each_store")
def test_the_cap_holds_at_every_moment_and_the_room_is_usable(tier: DiskStore, tmp_path: Path) -> None:
    """Fills the tier and replaces its pages several times: nothing that fits by the count is rejected."""
    fitting = tier.capacity // 3 - 4
    for first in range(0, 5 * fitting, 20):
        old = [outgoing(number).key for number in range(max(0, first - fitting), max(0, first + 20 - fitting))]
        written = tier.write(old, outgoings(range(first, first + 20)))
        assert set(written.reasons) == {""}
        assert bytes_in(tmp_path) <= CAP
    assert tier.state().used_frames > 0.9 * tier.capacity
    assert tier.state().file_bytes > 0.75 * CAP


@pytest.mark.usefixtures("each_store")
def test_pages_beyond_the_room_are_rejected_one_by_one(tier: DiskStore) -> None:
    pages = outgoings(range(tier.capacity))
    written = tier.write([], pages)
    assert set(written.reasons) == {"", "there is no room: drop pages first"}
    kept = [page for page, stored in zip(pages, written.stored, strict=True) if stored]
    assert keys_in(tier) == {page.key for page in kept}
    assert outcomes(tier, kept) == {ReadOutcome.EXACT}
    assert tier.write([], [outgoing(-1, CAP)]).stored == (False,)


def test_a_full_map_rejects_only_the_page_that_does_not_fit(tier: DiskStore) -> None:
    """The map is made smaller than the capacity promises."""
    for environment in tier._environments:
        endless = {
            "capacity": 10**6,
            "frames_per_transaction": 40,
            "pages_per_transaction": 40,
            "stride": 2,
            "frame_bytes": FRAME,
        }
        environment.shape = type("Endless", (), endless)()
    pages = outgoings(range(500))
    written = tier.write([], pages)
    assert any("MDB_MAP_FULL" in reason for reason in written.reasons)
    kept = [page for page, stored in zip(pages, written.stored, strict=True) if stored]
    assert len(kept) > 200
    assert keys_in(tier) == {page.key for page in kept}
    assert outcomes(tier, kept) == {ReadOutcome.EXACT}
    again = tier.write([page.key for page in kept[:100]], outgoings(range(1000, 1050)))
    assert all(again.stored)


@pytest.mark.usefixtures("each_store")
def test_a_sync_makes_the_tier_clean_and_a_write_dirty(tier: DiskStore) -> None:
    assert tier.state().clean
    tier.write([], [outgoing(1)])
    assert not tier.state().clean
    before = tier.state().last_sync
    tier.sync()
    assert tier.state().clean
    assert tier.state().last_sync > before


@pytest.mark.usefixtures("each_store")
def test_too_small_a_cap_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TierError, match="too small"):
        small_tier(tmp_path / "tier", cap=1 << 18)
