"""What other users of a fleet's folder put there changes nothing outside of it, and does not close it."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet_pages import BUFFERS, OpenedFleet, opened_fleet
from other_users import ALICE, MALLORY, as_root, output_as
from pagetier.shm import clock
from pagetier.tiers.base import ReadOutcome, TierError
from pagetier.tiers.fleet.fleet_options import check_options
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_pages import outgoing, outgoings

HOURS_AGO = clock.date() - 7200
OWN = "0" * 32  # the name of a file that a host was writing
GROUP = MALLORY
_AS_PEER = "from pathlib import Path\nfrom shared_folder_peer import store_and_read"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="pagetier-test-") as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "fleet"
        folder.mkdir(mode=0o755)
        yield folder


@pytest.fixture
def outside(folder: Path) -> Path:
    """Returns a folder beside the fleet's with an old file that must not change."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / OWN).write_text("not the fleet's")
    os.utime(outside / OWN, (HOURS_AGO, HOURS_AGO))
    return outside


def options_of(folder: Path) -> FleetOptions:
    return FleetOptions(url=f"file://{folder}", buffers=BUFFERS, timeout_s=20)


def assert_untouched(outside: Path) -> None:
    assert [path.name for path in outside.iterdir()] == [OWN]
    assert (outside / OWN).read_text() == "not the fleet's"


@contextmanager
def umask_of(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", [".unfinished", "pagetier"])
def test_a_link_in_place_of_a_folder_is_named_and_not_followed(folder: Path, outside: Path, name: str) -> None:
    (folder / name).symlink_to(outside)
    with pytest.raises(TierError, match=f"{name} is a link or a file instead of a folder: remove it"):
        open_fleet(options_of(folder))
    assert_untouched(outside)


@pytest.mark.parametrize("name", [".unfinished", "pagetier", "pagetier/{space}"])
def test_a_link_that_comes_later_is_not_followed(folder: Path, tmp_path: Path, name: str) -> None:
    page, new = outgoing(1), outgoing(2)
    with opened_fleet(options_of(folder)) as opened:
        opened.store_all(page)
        path = folder / name.format(space=page.space.digest[:8].hex())
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        before = sorted(tmp_path.rglob("*"))
        written = opened.fleet.write([], [new])
        assert not written.stored[0] and "is a link or a file instead of a folder" in written.reasons[0]
        if name != ".unfinished":
            assert opened.outcome(page) is ReadOutcome.ABSENT
            with pytest.raises(TierError, match="is a link or a file"):
                opened.store.remove(opened.name(page))
        assert sorted(tmp_path.rglob("*")) == before


def test_what_other_programs_have_in_the_folder_stays(folder: Path) -> None:
    beside = folder / ".unfinished"
    beside.mkdir()
    (beside / OWN).touch()
    (beside / ("1" * 32)).mkdir()
    (beside / ("2" * 32)).touch()
    others = [beside / ".nfs00000001", beside / ".snapshot", beside / "1.tmp"]
    for path in others:
        path.touch()
    for path in [*others, beside / OWN, beside / ("1" * 32)]:
        os.utime(path, (HOURS_AGO, HOURS_AGO))
    with opened_fleet(options_of(folder)) as opened:
        opened.store_all(outgoing(1))
    assert {path.name for path in beside.iterdir()} == {path.name for path in others} | {"1" * 32, "2" * 32}


def test_a_wrong_clock_removes_nothing_that_is_being_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = folder / ".unfinished"
    beside.mkdir()
    (beside / OWN).touch()
    monkeypatch.setattr(clock, "date", lambda: HOURS_AGO + 4 * 7200)
    with opened_fleet(options_of(folder)):
        assert (beside / OWN).exists()


def test_the_folder_of_what_is_being_written_is_no_prefix() -> None:
    with pytest.raises(TierError, match=r"the prefix in remote\.url cannot be '\.unfinished"):
        check_options(FleetOptions(url="file:///tmp", prefix=".unfinished/x"))


def as_empty(path: Path) -> None:
    path.touch()


def as_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def as_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(path.parent, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def as_folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


@pytest.mark.parametrize("odd", [as_empty, as_link, os.mkfifo, as_socket, as_folder])
def test_what_is_no_object_is_a_miss_and_is_replaced(folder: Path, odd: Callable[[Path], None]) -> None:
    read, written = outgoings([1, 2])
    with opened_fleet(options_of(folder)) as opened:
        opened.store_all(read, written, outgoing(3))
        for page in (read, written):
            (folder / opened.name(page)).unlink()
            odd(folder / opened.name(page))
        assert opened.outcome(read) is ReadOutcome.DAMAGED
        opened.store_all(written, read)
        assert {opened.outcome(page) for page in (read, written)} == {ReadOutcome.EXACT}
        assert opened.fleet.state().damaged == 2


def modes(folder: Path) -> set[str]:
    return {f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.rglob("*")}


@pytest.mark.parametrize("mask", [0o000, 0o077])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [(0o2770, {"2770", "660"}), (0o755, {"750", "640"}), (0o700, {"700", "600"}), (0o777, {"777", "666"})],
)
def test_what_is_created_has_the_rights_of_the_folder_whatever_the_umask(
    folder: Path, mode: int, expected: set[str], mask: int
) -> None:
    folder.chmod(mode)
    with umask_of(mask), opened_fleet(options_of(folder)) as opened:
        opened.store_all(outgoing(1))
    assert modes(folder) == expected


@as_root
def test_hosts_of_one_group_read_and_write_and_remove(folder: Path) -> None:
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    first = peer(folder, ALICE, "12", "", groups=[GROUP])
    second = peer(folder, MALLORY, "34", "12", groups=[GROUP])
    assert (first, second) == ((0, "stored 2, exact 0"), (0, "stored 2, exact 2"))
    (path,) = folder.rglob(outgoing(1).key.hex())
    path.write_bytes(b"")
    assert peer(folder, MALLORY, "1", "1", groups=[GROUP]) == (0, "stored 1, exact 1")


@as_root
def test_a_host_that_may_not_write_reads_and_says_what_to_do(folder: Path) -> None:
    os.chown(folder, ALICE, GROUP)
    folder.chmod(0o755)
    assert peer(folder, ALICE, "12", "", groups=[GROUP])[0] == 0
    code, text = peer(folder, MALLORY, "3", "12", groups=[GROUP])
    assert (code, text.splitlines()[-1]) == (0, "stored 0, exact 2")
    assert f"user {MALLORY} may not write to {folder}: give all hosts' users one group" in text


@as_root
def test_a_folder_of_a_user_who_may_not_write_there_is_refused(folder: Path) -> None:
    with opened_fleet(options_of(folder)) as opened:
        opened.store_all(outgoing(1))
    os.chown(folder / "pagetier", MALLORY, MALLORY)
    with pytest.raises(TierError, match=f"pagetier belongs to user {MALLORY}, who may not write there"):
        OpenedFleet(options_of(folder))


def peer(folder: Path, user: int, stores: str, reads: str, groups: list[int]) -> tuple[int, str]:
    """Stores and reads pages by their numbers, as a host of this user."""
    call = "print(store_and_read(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))"
    environ = {"PYTHONPATH": str(Path(__file__).parents[1] / "harness")}
    code, text = output_as(user, _AS_PEER, call, str(folder), stores, reads, environ=environ, groups=groups)
    return code, text.strip()
