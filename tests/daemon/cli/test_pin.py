"""Tests `pagetier pages pin` and `pagetier pages unpin` against a real daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_daemon import write_through
from eventually import PATIENCE_S, eventually
from fake_daemon import FakeDaemon
from pagetier.client import Client, Hint
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace

FRAME = 65_536
SPACE, OTHER = namespace(), namespace(revision="other")


@pytest.fixture(scope="module")
def daemon() -> Iterator[RunningDaemon]:
    with RunningDaemon("16MiB", "64KiB") as running:
        yield running


@pytest.fixture
def file(client: Client, tmp_path: Path) -> Path:
    """Returns a file with the keys of a prompt of 10 pages, which is stored, as is another of the other namespace."""
    for space in (SPACE, OTHER):
        client.store(space.keys(range(10 * space.page_tokens)), [bytes(100)] * 10)
    lines = [key.hex() for key in SPACE.keys(range(10 * SPACE.page_tokens))]
    keys = tmp_path / "keys"
    keys.write_text("# a system prompt\n\n" + "\n".join(lines) + "  # its last page\n")
    return keys


def words(text: str) -> str:
    """Returns a text without its line breaks."""
    return " ".join(text.split())


def test_pages_of_a_file_are_pinned_and_unpinned(daemon: RunningDaemon, file: Path) -> None:
    done = daemon.pagetier("pages", "pin", "--keys-file", str(file))
    assert (done.exit_code, done.output) == (0, "10 pages pinned; 640.0 KiB are kept in memory by request\n")
    assert eventually(lambda: "640.0 KiB kept in memory by request" in words(daemon.pagetier("stats").output))
    assert json.loads(daemon.pagetier("stats", "--json").output)["hints"]["kept_bytes"] == 10 * FRAME
    done = daemon.pagetier("pages", "unpin", "--keys-file", str(file), "--json")
    assert json.loads(done.output) == {"pages": 10, "applied": 10, "kept_bytes": 0, "only_on_disk": 0}


def test_all_pages_of_a_namespace_are_pinned(daemon: RunningDaemon, file: Path) -> None:
    label = next(space.label for space in daemon.snapshot().namespaces if space.digest == OTHER.digest.hex())
    done = daemon.pagetier("pages", "pin", "--namespace", label, "--json")
    counts = {"pages": 10, "applied": 10, "kept_bytes": 10 * FRAME, "only_on_disk": 0}
    assert (done.exit_code, json.loads(done.output)) == (0, counts)
    assert daemon.pagetier("pages", "pin", "--namespace", label, "--keys-file", str(file)).exit_code == Exit.WRONG
    done = daemon.pagetier("pages", "unpin", "--namespace", SPACE.digest.hex())
    assert (done.exit_code, done.output.partition(";")[0]) == (0, "10 pages unpinned")
    assert json.loads(daemon.pagetier("pages", "unpin", "--namespace", label, "--json").output)["kept_bytes"] == 0


def test_pages_that_are_not_in_memory_are_not_pinned(daemon: RunningDaemon, file: Path) -> None:
    file.write_text(file.read_text() + "ab" * 32 + "\n")
    done = daemon.pagetier("pages", "pin", "--keys-file", str(file))
    assert done.exit_code == Exit.WRONG
    assert "10 pages pinned" in done.output and "1 page not pinned" in done.output


def test_pages_beyond_the_share_are_not_pinned_and_the_limit_is_named(file: Path) -> None:
    with RunningDaemon("1MiB", "64KiB", "--set", "evict.keep_share=0.25") as daemon, daemon.client() as client:
        client.store(SPACE.keys(range(10 * SPACE.page_tokens)), [bytes(100)] * 10)
        by_name = daemon.pagetier("pages", "pin", "--namespace", SPACE.digest.hex())
        by_key = daemon.pagetier("pages", "pin", "--keys-file", str(file))
        assert eventually(lambda: "absent or beyond evict.keep_share" in words(daemon.pagetier("stats").output))
    limit = "beyond evict.keep_share (256.0 KiB of 1.0 MiB)"
    assert by_name.exit_code == by_key.exit_code == Exit.WRONG
    assert f"6 pages not pinned: {limit}" in words(by_name.output)
    assert f"not pinned: in no tier, of another namespace, or {limit}" in words(by_key.output)


def test_pages_that_are_only_on_disk_are_counted_and_the_command_that_reads_them_is_named(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with write_through() as daemon, daemon.client() as client:
        keys = SPACE.keys(range(16 * 6))
        client.store(keys, [bytes(FRAME)] * 6)
        daemon.push_out(client, keys)
        client.store(SPACE.keys(range(1 << 20, (1 << 20) + 32)), [bytes(FRAME)] * 2)
        file.write_text("\n".join(key.hex() for key in keys))
        done = daemon.pagetier("pages", "pin", "--namespace", SPACE.digest.hex())
        assert done.exit_code == Exit.WRONG and "2 pages pinned" in done.output
        assert "6 pages not pinned: 6 only on disk (read them into memory with `pagetier pages" in words(done.output)
        by_key = daemon.pagetier("pages", "pin", "--keys-file", str(file), "--json")
        assert by_key.exit_code == Exit.WRONG and "6 only on disk" in by_key.output
        counts = {"pages": 6, "applied": 0, "kept_bytes": 2 * FRAME, "only_on_disk": 6}
        assert json.loads(by_key.output.splitlines()[0]) == counts
        assert daemon.pagetier("pages", "prefetch", "--namespace", SPACE.digest.hex()).exit_code == Exit.OK
        done = daemon.pagetier("pages", "pin", "--namespace", SPACE.digest.hex())
        assert (done.exit_code, done.output.partition(";")[0]) == (Exit.OK, "8 pages pinned")


def test_an_operator_unpins_what_engines_keep(daemon: RunningDaemon, client: Client, file: Path) -> None:
    client.hint(SPACE.keys(range(10 * SPACE.page_tokens)), Hint.keep())
    assert json.loads(daemon.pagetier("pages", "unpin", "--keys-file", str(file), "--json").output)["kept_bytes"] == 0


@pytest.mark.parametrize("text", ["xyz\n", "ab\n", "ab" * 33 + "\n"])
def test_a_line_that_is_no_key_is_invalid_usage(daemon: RunningDaemon, file: Path, text: str) -> None:
    file.write_text("# keys\n" + text)
    done = daemon.pagetier("pages", "pin", "--keys-file", str(file))
    assert done.exit_code == Exit.USAGE and "line 2 of" in done.output


def test_invalid_usage(daemon: RunningDaemon, tmp_path: Path) -> None:
    assert daemon.pagetier("pages", "pin").exit_code == Exit.USAGE
    assert daemon.pagetier("pages", "pin", "--keys-file", str(tmp_path / "none")).exit_code == Exit.USAGE
    missing = daemon.pagetier("pages", "pin", "--namespace", "nothing")
    assert missing.exit_code == Exit.WRONG and "no namespace has the label" in missing.output


def test_with_lru_nothing_is_pinned(file: Path) -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "evict.policy=lru") as daemon:
        done = daemon.pagetier("pages", "pin", "--keys-file", str(file))
        assert daemon.pagetier("pages", "unpin", "--keys-file", str(file)).exit_code == Exit.WRONG
        assert done.exit_code == Exit.WRONG and 'evict.policy = "cadence"' in done.output


def test_a_daemon_of_an_earlier_version_is_not_asked() -> None:
    with FakeDaemon() as fake, Client(fake.socket) as client:
        assert client.wait_attached(PATIENCE_S)
        assert not client.hint(SPACE.keys(range(SPACE.page_tokens)), Hint.over())
        assert client.attached
        assert fake.asked.empty()
