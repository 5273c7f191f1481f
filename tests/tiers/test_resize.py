"""The lmdb store shrinks a file by copying it, if there is room for the copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from child_process import DIED, in_child
from pagetier.tiers.base import ReadOutcome
from pagetier.tiers.lmdb import resize
from store_pages import CAP, bytes_in, filled_tier, keys_in, outcomes, outgoings, small_tier


def test_a_tier_without_room_for_a_copy_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = filled_tier(tmp_path)
    before = bytes_in(tmp_path)
    monkeypatch.setattr(resize.LmdbResize, "_lacking", lambda self: 12345)
    tier = small_tier(tmp_path, cap=CAP // 2)
    assert f"the cap is {CAP // 2}: free " in tier.state().note
    assert tier.state().used_frames <= tier.capacity
    assert bytes_in(tmp_path) <= before + (2 << 20)
    held = keys_in(tier)
    assert outcomes(tier, outgoings(n for n, key in enumerate(keys) if key in held)) == {ReadOutcome.EXACT}
    tier.close()
    monkeypatch.undo()
    tier = small_tier(tmp_path, cap=CAP // 2)
    assert tier.state().note == ""
    assert bytes_in(tmp_path) <= CAP // 2
    tier.close()


def test_a_crash_while_shrinking_leaves_no_copy_behind(tmp_path: Path) -> None:
    filled_tier(tmp_path)

    def die(name: str) -> None:
        if name == "shrinking.copied":
            os._exit(DIED)

    def shrink() -> None:
        resize.point = die  # type: ignore[attr-defined]
        small_tier(tmp_path, cap=CAP // 2)

    assert in_child(shrink) == DIED
    assert (tmp_path / "0.new" / "data.mdb").exists()
    tier = small_tier(tmp_path)
    assert tier.state().opened == "as it was left"
    assert bytes_in(tmp_path) <= CAP
    tier.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "owner", "state", "state.tmp"]
