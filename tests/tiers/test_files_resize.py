"""The files store moves pages below a lower cap, and gives the rest of its files back."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from files_store import opened, slots_of
from pagetier.tiers.base import DoubtError, Outgoing, ReadOutcome
from pagetier.tiers.capacity import frames_under
from pagetier.tiers.disk import doubt, file_system
from pagetier.tiers.frame_files.direct_files import DirectFiles
from store_pages import FRAME, outcome_of, outgoings

CAP = 3 << 20
LARGE = 8  # frames


def cap_of(capacity: int) -> int:
    """Returns the largest cap under which one environment has so many frames."""
    return next(cap for cap in range(CAP, 0, -FRAME) if frames_under("files", cap, 1, FRAME) == capacity)


def full_tier(folder: Path) -> tuple[int, list[Outgoing], Outgoing]:
    """Leaves a full tier. Returns its capacity, its small pages, the coldest first, and a large one at its end."""
    with closing(opened(folder, CAP)) as tier:
        small, (large,) = outgoings(range(tier.capacity - LARGE), FRAME), outgoings([tier.capacity], LARGE * FRAME)
        assert all(tier.write([], small).stored) and all(tier.write([], [large]).stored)
        assert slots_of(tier, large) == list(range(tier.capacity - LARGE, tier.capacity))
        return tier.capacity, small, large


def test_a_page_across_the_new_end_leaves_alone_if_there_is_no_room_to_move_it(tmp_path: Path) -> None:
    capacity, small, large = full_tier(tmp_path)
    with closing(opened(tmp_path, cap_of(capacity - LARGE // 2))) as tier:
        assert tier.state().opened == "as it was left"
        assert {outcome_of(tier, page) for page in small[LARGE // 2 :]} == {ReadOutcome.EXACT}
        assert outcome_of(tier, large) is ReadOutcome.ABSENT
        assert tier.write([], [large]).stored == (True,)
        assert outcome_of(tier, large) is ReadOutcome.EXACT


def test_pages_that_were_moved_and_could_not_be_synced_are_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capacity, small, large = full_tier(tmp_path)
    for failing in ((DirectFiles, "sync"), (file_system, "write_atomically")):
        with monkeypatch.context() as patch:
            patch.setattr(DirectFiles, "sync", partial(fail_then, patch, failing))
            with pytest.raises(DoubtError, match="could not be synced"):
                opened(tmp_path, cap_of(capacity - 2 * LARGE))
    doubt(tmp_path / "tier")  # as the next disk worker does, also where the disk did not take the doubt
    with closing(opened(tmp_path, cap_of(capacity - 2 * LARGE))) as tier:
        assert "proven sound" in tier.state().opened
        assert {outcome_of(tier, page) for page in (*small[2 * LARGE :], large)} == {ReadOutcome.EXACT}


def fail_then(patch: pytest.MonkeyPatch, failing: tuple[object, str], *_: object) -> None:
    """Fails, and lets another function fail from now on."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    patch.setattr(*failing, fail)
    fail()


def test_a_write_that_fails_while_pages_are_moved_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    capacity, small, large = full_tier(tmp_path)
    monkeypatch.setattr(DirectFiles, "write", fail)
    with closing(opened(tmp_path, cap_of(capacity - 2 * LARGE))) as tier:
        assert os.strerror(errno.EIO) in tier.state().note
        assert {outcome_of(tier, page) for page in (*small[2 * LARGE :], large)} == {ReadOutcome.EXACT}
        assert tier.state().used_frames == capacity - 2 * LARGE
    monkeypatch.undo()
    with closing(opened(tmp_path, cap_of(capacity - 2 * LARGE))) as tier:
        assert (tier.state().opened, tier.state().note) == ("as it was left", "")
        assert {outcome_of(tier, page) for page in (*small[2 * LARGE :], large)} == {ReadOutcome.EXACT}
