"""A store that an administrator must correct: one line says what to do, and the host serves by itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from eventually import eventually
from fleet_host import PATIENT, FleetHost, keys_of, pages_of
from pagetier.tiers.base import TOO_LARGE, TierError
from pagetier.tiers.fleet.check_host import check_folder
from small_file_systems import small_file_system

SIZE = 100_000
HARNESS = Path(__file__).parents[2] / "harness"


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.setenv("PYTHONPATH", str(HARNESS))
    with ExitStack() as stack:
        yield stack


def assert_one_line(host: FleetHost, words: str, event: str = "fleet_trouble") -> None:
    """Asserts that this event was logged once, with these words, and that local pages are served."""
    (line,) = host.daemon.lines(f"event={event}")
    assert words in line, line
    pages = pages_of(3, SIZE, len(words))
    assert host.client.store(keys_of(words, 3), pages).stored == 3
    loaded = host.load(words, 3, SIZE)
    assert loaded.pages == 3 and np.array_equal(loaded.out, pages)
    assert host.daemon.findings() == []


def load_until_closed(host: FleetHost, *names: str) -> None:
    for name in names:
        assert host.load(name, 1, SIZE).pages == 0
    assert eventually(lambda: not host.asks), host.report


def share_each(host: FleetHost, *names: str) -> None:
    for name in names:
        host.share(name, pages_of(1, SIZE))
    host.daemon.drop_all_pages()


def mount(source: Path, target: Path) -> None:
    if subprocess.run(["mount", "--bind", source, target], check=False, capture_output=True).returncode:
        pytest.skip("mount is refused here")


def unmount(target: Path) -> None:
    subprocess.run(["umount", "--lazy", target], check=True)


def test_a_folder_whose_file_system_is_gone_closes_the_fleet(stack: ExitStack, tmp_path: Path) -> None:
    disk, target = tmp_path / "disk", tmp_path / "mount"
    (disk / "pages").mkdir(parents=True)
    target.mkdir()
    mount(disk, target)
    stack.callback(unmount, target)
    host = FleetHost(f"file://{target}/pages", stack, *PATIENT)
    share_each(host, "a", "b", "c")
    unmount(target)
    load_until_closed(host, "a", "b", "c")
    assert_one_line(host, f"{target}/pages has lost its folder .unfinished: mount its file system again")
    assert list(target.iterdir()) == [], "something was written below the mount point"
    mount(disk, target)
    assert eventually(lambda: host.asks)
    assert host.load("a", 1, SIZE).pages == 1


def test_a_mount_point_is_no_folder_of_a_fleet() -> None:
    with (
        small_file_system("1m") as folder,
        pytest.raises(TierError, match=r"is a mount point: set remote\.url to a folder in it"),
    ):
        check_folder(folder)


def test_a_full_store_is_read_and_takes_the_pages_when_there_is_room(stack: ExitStack) -> None:
    with small_file_system("1m") as disk:
        (disk / "pages").mkdir()
        host = FleetHost(f"file://{disk}/pages", stack, *PATIENT, "--arena-size", "64MiB")
        share_each(host, "first")
        (disk / "filling").write_bytes(bytes(600_000))
        host.client.store(keys_of("more", 6), pages_of(6, SIZE))
        assert eventually(lambda: host.report.waiting > 0), host.report
        assert "pages is full: delete old objects, or give it more room" in host.report.write_trouble
        text = " ".join(host.daemon.pagetier("stats").stdout.split())
        assert "to be written again (the store failed: " in text or "is full: delete old objects" in text, text
        assert eventually(lambda: bool(host.daemon.lines("event=fleet_write_trouble"))), host.report
        assert host.asks and not host.fresh_report().openings and not host.daemon.lines("event=fleet_trouble")
        assert host.load("first", 1, SIZE).pages == 1, "a store that takes no pages still returns them"
        (disk / "filling").unlink()
        assert eventually(lambda: host.report.written == 7, 60.0), host.report
        assert host.report.waiting == 0 and host.report.failed == 0
        host.daemon.drop_all_pages()
        assert host.load("more", 6, SIZE).pages == 6, "the chain has no hole"
        stack.close()


def test_pages_that_leave_memory_unwritten_are_named(stack: ExitStack, tmp_path: Path) -> None:
    """The line says how many of them had left when the daemon first saw one, which depends on their retries."""
    (tmp_path / "unwritable").touch()
    host = FleetHost(f"python://faulty_store:unreadable_folder?folder={tmp_path}", stack, *PATIENT)
    host.client.store(keys_of("lost", 3), pages_of(3, SIZE))
    assert eventually(lambda: host.report.waiting == 3), host.report
    host.daemon.drop_all_pages()
    assert eventually(lambda: host.report.failed == 3, 60.0), host.report
    line, *_ = eventually(lambda: host.daemon.lines("event=fleet_given_up"))
    assert " pages were given up and are not in the fleet: the store failed: OSError: [Errno 28]" in line
    text = " ".join(host.daemon.pagetier("stats").stdout.split())
    assert "3 pages given up (the store failed: OSError: [Errno 28]" in text, text
    (tmp_path / "unwritable").unlink()
    host.client.store(keys_of("lost", 5), pages_of(5, SIZE))
    assert eventually(lambda: host.report.written == 5, 60.0), "the next host that computes them fills the hole"


def test_pages_that_are_larger_than_the_buffers_keep_no_others_from_the_fleet(stack: ExitStack, tmp_path: Path) -> None:
    size = 1_500_000
    large = FleetHost(f"file://{tmp_path}", stack, *PATIENT, "--arena-size", "64MiB")
    large.share("theirs", pages_of(3, size))
    host = FleetHost(f"file://{tmp_path}?buffers=1MiB", stack, *PATIENT, "--arena-size", "64MiB")
    assert host.client.store(keys_of("own", 3), pages_of(3, size)).stored == 3
    share_each(host, "small")
    assert [host.load("theirs", 3, size).pages for _ in range(4)] == [0] * 4
    assert host.load("small", 1, SIZE).pages == 1
    report = host.fresh_report()
    assert (report.failed, report.given_up, report.waiting, report.openings) == (3, TOO_LARGE, 0, 0)
    assert eventually(lambda: bool(host.daemon.lines("event=fleet_note"))), host.report
    assert_one_line(host, TOO_LARGE, "fleet_note")


def test_a_store_that_lists_but_does_not_serve_closes_the_fleet(stack: ExitStack, tmp_path: Path) -> None:
    host = FleetHost(f"python://faulty_store:unreadable_folder?folder={tmp_path}", stack, *PATIENT)
    share_each(host, "a", "b", "c")
    (tmp_path / "unreadable").touch()
    load_until_closed(host, "a", "b", "c")
    assert_one_line(host, "the store failed: OSError: [Errno 5] Input/output error")


def test_objects_of_another_version_are_misses_and_stay(stack: ExitStack, tmp_path: Path) -> None:
    host = FleetHost(f"file://{tmp_path}", stack, *PATIENT)
    share_each(host, "a")
    (path,) = tmp_path.glob("pagetier/*/*")
    data = bytearray(path.read_bytes())
    data[8] += 1
    path.write_bytes(data)
    assert host.load("a", 1, SIZE).pages == 0
    assert eventually(lambda: bool(host.daemon.lines("event=fleet_note")))
    assert_one_line(host, "objects are of another version: choose another prefix in remote.url", "fleet_note")
    assert path.read_bytes() == data and host.fresh_report().damaged == 0
