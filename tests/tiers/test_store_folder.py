"""Opening what an earlier run left: kept where it can be trusted, otherwise rebuilt empty with one line."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from file_changes import write_at
from pagetier.tiers.base import DoubtError, ReadOutcome, TierError
from pagetier.tiers.disk import file_system, recovery, store_folder
from store_pages import CAP, bytes_in, filled_tier, keys_in, outcomes, outgoings, small_tier

pytestmark = pytest.mark.usefixtures("each_store")

PAGES = outgoings(range(60))


def leave(folder: Path) -> None:
    """Leaves a closed tier that holds PAGES."""
    tier = small_tier(folder)
    assert all(tier.write([], PAGES).stored)
    tier.close()


def change_state(folder: Path, **fields: Any) -> None:
    state = json.loads((folder / "state").read_bytes())
    (folder / "state").write_text(json.dumps(state | fields))


def opened(folder: Path, **more: Any) -> tuple[str, int, int]:
    """Returns how the tier was found, how many of PAGES it holds and how many more fit.

    Its pages are right, and it works.
    """
    tier = small_tier(folder, **more)
    held = keys_in(tier)
    assert outcomes(tier, [page for page in PAGES if page.key in held]) <= {ReadOutcome.EXACT}
    more_pages = outgoings(range(1000, 1010))
    assert all(tier.write([], more_pages).stored)
    assert outcomes(tier, more_pages) == {ReadOutcome.EXACT}
    how = tier.state().opened
    tier.close()
    return how, len(held), tier.capacity


def test_missing_folders_are_created(tmp_path: Path) -> None:
    assert opened(tmp_path / "a" / "b" / "tier")[:2] == ("new", 0)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, "as it was left"),
        ({"clean": False}, "as it was left"),  # by a process that died
        ({"boot": "another"}, "as it was left"),  # before the host restarted
        ({"boot": "another", "clean": False}, "after an unclean host restart: proven sound in "),
    ],
)
def test_a_sound_tier_keeps_its_pages(tmp_path: Path, state: dict[str, Any], expected: str) -> None:
    leave(tmp_path)
    change_state(tmp_path, **state)
    how, held, _ = opened(tmp_path)
    assert how.startswith(expected)
    assert held == 60
    assert opened(tmp_path)[0] == "as it was left"


def verify_with(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets another program verify the files."""
    (folder / "other_proof.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(recovery, "_PROOF", "other_proof")


def test_a_tier_is_rebuilt_if_verification_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(tmp_path / "tier")
    change_state(tmp_path / "tier", boot="another", clean=False)
    verify_with("while True: pass", tmp_path, monkeypatch)
    assert opened(tmp_path / "tier", proof_seconds=0.1)[:2] == ("rebuilt empty: verifying it takes too long", 0)


def test_a_verification_may_take_longer_by_the_clock_than_its_processor_time(tmp_path: Path) -> None:
    """Its limit here is rounded up to a second of processor time, and by the clock no process could meet it."""
    leave(tmp_path)
    change_state(tmp_path, boot="another", clean=False)
    assert opened(tmp_path, proof_seconds=1e-6)[1] == 60


def test_a_tier_keeps_its_pages_if_the_system_kills_a_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path / "tier")
    change_state(tmp_path / "tier", boot="another", clean=False)
    with monkeypatch.context() as patch:
        verify_with("import os; os.kill(os.getpid(), 9)", tmp_path, patch)
        with pytest.raises(DoubtError, match="was killed, maybe because memory ran out"):
            small_tier(tmp_path / "tier")
    how, held, _ = opened(tmp_path / "tier")
    assert how.startswith("after an unclean host restart: proven sound")
    assert held == 60


def spoil_tree(folder: Path) -> None:
    change_state(folder, boot="another", clean=False)
    for page in range(2, 60):
        write_at(folder / "0" / "data.mdb", page * 4096 + 10, b"\xff")


@pytest.mark.parametrize("harm", [spoil_tree, lambda folder: (folder / "1" / "data.mdb").unlink()])
def test_only_damaged_and_missing_environments_are_rebuilt(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    leave(tmp_path)
    harm(tmp_path)
    how, held, _ = opened(tmp_path)
    assert how.startswith("rebuilt empty in 1 of 2 parts")
    assert 20 < held < 40


@pytest.mark.parametrize("length", [0, 100, 4096, 8192, 50000])
def test_a_shortened_file_is_never_mapped(tmp_path: Path, length: int) -> None:
    leave(tmp_path)
    for number in "01":
        os.truncate(tmp_path / number / "data.mdb", length)
    how, held, _ = opened(tmp_path)
    assert how.startswith("rebuilt empty: ")
    assert held == 0


def _overwrite(folder: Path) -> None:
    for number in "01":
        (folder / number / "data.mdb").write_bytes(b"x" * 500_000)


def spoil_text(state: Path) -> None:
    state.write_bytes(state.read_bytes().replace(b'"boot":"', b'"boot":"\xff'))


def _other_lmdb(folder: Path) -> None:
    for number in "01":
        for page in (0, 1):
            write_at(folder / number / "data.mdb", page * 4096 + 20, b"\x07")


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda folder: change_state(folder, format=9), "format was 9, is "),
        (lambda folder: change_state(folder, frame_bytes=8192), "frame bytes was 8192, is 4096"),
        (lambda folder: change_state(folder, environments=4), "environments was 4, is 2"),
        (lambda folder: (folder / "state").write_bytes(b"\0nonsense"), "its state file cannot be decoded"),
        (lambda folder: spoil_text(folder / "state"), "its state file cannot be decoded"),
        (lambda folder: (folder / "state").unlink(), "its state file is missing"),
        (_overwrite, "incomplete meta pages"),
        (_other_lmdb, "data format v7 is not supported"),
    ],
)
def test_a_tier_of_another_format_is_rebuilt(tmp_path: Path, harm: Callable[[Path], object], why: str) -> None:
    leave(tmp_path)
    harm(tmp_path)
    how, held, _ = opened(tmp_path)
    assert how.startswith("rebuilt empty: ")
    assert why in how
    assert "\n" not in how
    assert held == 0
    assert opened(tmp_path)[0] == "as it was left"


def test_a_changed_number_of_environments_leaves_no_files_behind(tmp_path: Path) -> None:
    leave(tmp_path)
    tier = small_tier(tmp_path, environments=1)
    assert "environments was 2, is 1" in tier.state().opened
    assert not (tmp_path / "1").exists()
    tier.close()


def test_a_tier_cannot_be_opened_twice(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    with pytest.raises(TierError, match="in use by another daemon"):
        small_tier(tmp_path)
    tier.close()
    small_tier(tmp_path).close()


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "tier"):
        with pytest.raises(TierError, match="is a file"):
            small_tier(folder)


@pytest.mark.parametrize(("name", "shown"), [(b"photos", "photos"), (b"caf\xe9", r"caf\xe9")])
def test_a_folder_with_other_files_is_rejected_unchanged(name: bytes, shown: str, tmp_path: Path) -> None:
    """The worker sends the reason to the daemon, whose protocol has UTF-8 only."""
    (tmp_path / os.fsdecode(name)).write_bytes(b"")
    with pytest.raises(TierError) as error:
        small_tier(tmp_path)
    assert f"other files ({shown})" in str(error.value)


# A lowered cap


def test_a_lowered_cap_drops_the_coldest_and_frees_disk_space(tmp_path: Path) -> None:
    keys = filled_tier(tmp_path)
    tier = small_tier(tmp_path, cap=CAP // 2)
    state = tier.state()
    assert (state.note, state.opened) == ("", "as it was left")
    assert bytes_in(tmp_path) <= CAP // 2
    assert 0.8 * tier.capacity < state.used_frames <= tier.capacity
    held = keys_in(tier)
    assert set(keys[-len(held) // 2 :]) <= held
    assert not held & set(keys[: len(keys) // 4])
    assert outcomes(tier, outgoings(n for n, key in enumerate(keys) if key in held)) == {ReadOutcome.EXACT}
    drops = [key for key in keys if key in held][:20]
    assert all(tier.write(drops, outgoings(range(2000, 2020))).stored)
    assert bytes_in(tmp_path) <= CAP // 2
    tier.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "owner", "state", "state.tmp"]


def test_a_raised_cap_adds_room(tmp_path: Path) -> None:
    leave(tmp_path)
    how, held, room = opened(tmp_path, cap=2 * CAP)
    assert (how, held) == ("as it was left", 60)
    assert room > 1.8 * opened(tmp_path)[2]


def test_a_tier_reports_its_state(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    assert repr(tier) == f"<{type(tier).__name__} in {tmp_path}: 0 of {tier.capacity} frames>"
    state = tier.state()
    assert (state.cap_bytes, state.damaged, state.clean) == (CAP, 0, True)
    assert 0 < state.disk_free <= state.disk_total
    tier.close()


def test_a_distrusted_tier_is_verified_despite_later_syncs(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    assert all(tier.write([], PAGES).stored)
    tier.distrust()
    tier.sync()
    tier.close()
    how, held, _ = opened(tmp_path)
    assert "proven sound in " in how
    assert held == 60
    assert opened(tmp_path)[0] == "as it was left"


def test_a_rejected_folder_is_not_changed(tmp_path: Path) -> None:
    """Another user may have placed its links there."""
    folder = tmp_path / "tier"
    leave(folder)
    (folder / "7").symlink_to(tmp_path)
    before = sorted(path.name for path in folder.iterdir())
    folder.chmod(0o777)
    with pytest.raises(TierError, match="all users may write to"):
        small_tier(folder)
    assert sorted(path.name for path in folder.iterdir()) == before


class LateFileSystem:
    """A file system with a tier that is mounted over an empty folder when a point is passed."""

    def __init__(self, folder: Path, moment: str) -> None:
        self._folder, self._moment = folder, moment
        leave(folder / "mounted")
        self.state = (folder / "mounted" / "state").read_bytes()

    def pass_point(self, name: str) -> None:
        if name == self._moment and (self._folder / "mounted").exists():
            (self._folder / "tier").rename(self._folder / "hidden")
            (self._folder / "mounted").rename(self._folder / "tier")


@pytest.mark.parametrize("moment", ["opening.emptied", "opening.marked", "opening.opened"])
def test_a_file_system_that_is_mounted_while_a_tier_is_opened_keeps_its_pages(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = LateFileSystem(tmp_path, moment)
    with monkeypatch.context() as patch:
        patch.setattr(store_folder, "point", late.pass_point)
        with pytest.raises(TierError, match="tier was replaced by another folder"):
            small_tier(tmp_path / "tier")
    assert (tmp_path / "tier" / "state").read_bytes() == late.state
    assert opened(tmp_path / "tier")[:2] == ("as it was left", 60)


def test_a_file_system_that_is_mounted_over_a_tier_is_neither_written_nor_vouched_for(tmp_path: Path) -> None:
    late = LateFileSystem(tmp_path, "now")
    tier = small_tier(tmp_path / "tier")
    late.pass_point("now")
    with pytest.raises(TierError, match="tier was replaced by another folder"):
        tier.write([], PAGES)
    for call in (tier.state, tier.sync, tier.close):
        with pytest.raises(DoubtError, match="tier was replaced by another folder"):
            call()
    assert (tmp_path / "tier" / "state").read_bytes() == late.state
    assert opened(tmp_path / "tier")[:2] == ("as it was left", 60)


def test_a_link_in_place_of_an_environment_is_not_followed(tmp_path: Path) -> None:
    folder, target = tmp_path / "tier", tmp_path / "target"
    leave(folder)
    target.mkdir()
    file_system.remove_environment(folder / "0")
    (folder / "0").symlink_to(target)
    with contextlib.closing(small_tier(folder)) as tier:
        assert "rebuilt empty in 1 of 2 parts" in tier.state().opened
    assert not (folder / "0").is_symlink()
    assert list(target.iterdir()) == []
