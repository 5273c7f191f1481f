"""Tests `pagetier config`, and what doctor says by it, against a real daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from other_users import NOBODY, as_root, output_as
from pagetier.daemon.cli import main
from pagetier.daemon.stats.lookup_stats import LookupStats
from pagetier.shm.exit_codes import Exit
from running_daemon import RunningDaemon, namespace


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    folder = tmp_path_factory.mktemp("disk") / "d"
    file = folder.parent / "daemon.toml"
    file.write_text('[evict]\nfree = "2%"\n')
    disk = ("--disk-path", str(folder), "--disk-size", "64MiB", "--set", "disk.write=through", "--config", str(file))
    with RunningDaemon("16MiB", "64KiB", *disk) as running:
        running.wait_disk_open()
        yield running


def pagetier(command: str, daemon: RunningDaemon, *more: str) -> Result:
    runner = CliRunner(env={"PAGETIER_CONFIG": None, "PAGETIER_SOCKET": None})
    return runner.invoke(main, [command, "--socket", str(daemon.socket), *more])


# Imported before the process becomes another user, which may be unable to read them.
_ALL_COMMANDS = (
    "import locale, gettext; from pagetier.daemon.cli import doctor, flush, main, resize, stats;"
    " from pagetier.client.cli import selftest"
)


def output_without_rights(daemon: RunningDaemon, *command: str, socket: Path | None = None) -> str:
    """Returns what a command of a user without rights prints."""
    Path(daemon.folder.name).chmod(0o755)
    words = [command[0], "--socket", str(socket or daemon.socket), *command[1:]]
    code = "sys.argv[0] = 'pagetier'\ntry: main()\nexcept SystemExit: pass"
    return output_as(NOBODY, _ALL_COMMANDS, code, *words)[1]


def settings(daemon: RunningDaemon) -> dict[str, dict[str, str]]:
    values: dict[str, dict[str, str]] = json.loads(pagetier("config", daemon, "--json").stdout)
    return values


def test_each_setting_has_its_value_and_its_source(daemon: RunningDaemon) -> None:
    found = settings(daemon)
    assert found["arena.size"] == {"value": "16MiB", "source": "flag --arena-size"}
    assert found["evict.free"]["value"] == "0.02" and found["evict.free"]["source"].endswith("daemon.toml: evict.free")
    assert found["disk.sync"] == {"value": "10s", "source": "default"}
    lines = {line.split(" =")[0]: line for line in pagetier("config", daemon).output.splitlines()}
    assert lines["arena.size"].endswith("# flag --arena-size; room for 16.0 MiB in 256 frames")
    assert re.search(r"# .*; room for [0-9.]+ MiB in \d+ frames$", lines["disk.size"])


def test_a_resized_setting_names_the_command(daemon: RunningDaemon) -> None:
    assert pagetier("resize", daemon, "--evict-free", "5%").exit_code == Exit.OK
    assert settings(daemon)["evict.free"] == {"value": "0.05", "source": "pagetier resize"}


def test_doctor_without_a_file_compares_with_the_daemon_itself(daemon: RunningDaemon) -> None:
    lines = pagetier("doctor", daemon).output
    assert "the settings of the running daemon" in lines
    assert "restart" not in lines


def test_a_dry_run_changes_nothing(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.store(namespace().keys(range(16 * 100)), [bytes(60_000)] * 100)
    daemon.until_written()
    assert daemon.header().disk_pages == 100
    shown = pagetier("resize", daemon, "--disk-size", "4MiB", "--dry-run")
    assert shown.exit_code == Exit.OK and "of 100 will leave the disk: 4MiB has room for" in shown.output
    asked = pagetier("resize", daemon, "--disk-size", "4MiB")
    assert asked.exit_code == Exit.USAGE and "--yes" in asked.output
    kept = pagetier("resize", daemon, "--disk-size", "63MiB", "--dry-run")
    assert re.fullmatch(r"disk.size = 63MiB \(room for .* frames\)\n", kept.output)
    same = pagetier("resize", daemon, "--disk-size", "64MiB", "--dry-run")
    assert same.output == "nothing would change\n"
    wrong = pagetier("resize", daemon, "--disk-size", "1KiB", "--dry-run")
    assert wrong.exit_code == Exit.WRONG and "is too small: at least" in wrong.output
    flushed = pagetier("flush", daemon, "--all", "--dry-run")
    assert flushed.exit_code == Exit.OK and flushed.output.startswith("would drop from all namespaces: 100 pages")
    assert daemon.header().disk_pages == 100 and settings(daemon)["disk.size"]["value"] == "64MiB"


def test_a_disk_larger_than_its_file_system_is_warned_of_once(daemon: RunningDaemon) -> None:
    done = pagetier("resize", daemon, "--disk-size", "60TiB")
    assert done.exit_code == Exit.OK, done.output
    assert done.output.count("warning: disk.size = 60TiB is more than the file system") == 1
    assert pagetier("resize", daemon, "--disk-size", "64MiB", "--yes").exit_code == Exit.OK
    daemon.wait_disk_open()


def test_frames_that_are_far_too_large_are_reported(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        daemon.until_written()
        pagetier("flush", daemon, "--all", "--yes")
        client.store(namespace(lora="tiny").keys(range(16 * 20)), [bytes(5000)] * 20)
    advice = 'arena.frame_size = "4KiB" fits better: stop, then start with it and --fresh, which empties memory and the'
    assert advice in " ".join(pagetier("stats", daemon).output.split())
    assert advice in pagetier("doctor", daemon).output
    daemon.until_written()
    pagetier("flush", daemon, "--all", "--yes")
    assert "arena.frame_size" not in pagetier("stats", daemon).output


def written(output: str) -> list[str]:
    """Returns the lines of `doctor --write` about the page that it stored."""
    return [line for line in output.splitlines() if " write: " in line]


def test_the_page_of_doctor_leaves_no_page(daemon: RunningDaemon) -> None:
    before = daemon.header().pages
    done = pagetier("doctor", daemon, "--write")
    assert [line.split()[:3] for line in written(done.output)] == [
        ["ok", "write:", step] for step in ("attach", "store", "match", "load", "drop")
    ], done.output
    assert daemon.header().pages == before
    assert not written(pagetier("doctor", daemon).output)


def test_the_page_of_doctor_is_no_traffic() -> None:
    with RunningDaemon("16MiB", "64KiB") as own:
        for _ in range(3):
            assert len(written(pagetier("doctor", own, "--write").output)) == 5
        snapshot = own.snapshot()
        assert snapshot.lookups == LookupStats(lookups=0, memory_tokens=0, disk_tokens=0, missed_tokens=0)
        assert snapshot.tiers.memory.hit_ratio is None and "no lookups" in pagetier("stats", own, "--short").output
        assert "no lookups were counted yet" in pagetier("advise", own).output
        counts = own.observer().counts()
        assert counts == counts.__class__(*[0] * len(counts)), "neither pages nor bytes, tokens or times"
        assert not snapshot.namespaces and "nothing is stored yet" in own.pagetier("pages", "ls").output
        (space,) = own.observer().spaces()
        assert not space.pages, "one record for all runs, which the next namespace takes"


@as_root
def test_the_page_of_a_user_without_rights_says_what_grants_them(daemon: RunningDaemon) -> None:
    (refused,) = written(output_without_rights(daemon, "doctor", "--write"))
    assert "this user may not open the daemon's socket; to allow it, list the user in access.users" in refused
    assert 'access.socket_mode = "0666"' in refused
    closed = Path(daemon.folder.name) / "closed"
    closed.mkdir(mode=0o700)
    (inside,) = written(output_without_rights(daemon, "doctor", "--write", socket=closed / "pagetier.sock"))
    assert f"this user may not enter {closed}: run this as root" in inside and "socket_mode" not in inside
    daemon.socket.chmod(0o666)
    (unlisted,) = written(output_without_rights(daemon, "doctor", "--write"))
    assert "user 65534 may not attach: access.users does not list it" in unlisted
    assert "list the user there and reload the daemon" in unlisted


@as_root
def test_a_command_that_needs_more_than_watching_names_the_setting_for_it(daemon: RunningDaemon) -> None:
    daemon.socket.chmod(0o666)
    assert "to allow this command, list the user in access.users" in output_without_rights(
        daemon, "flush", "--all", "--yes"
    )
    assert "no setting allows it to others" in output_without_rights(daemon, "resize", "--disk-size", "1GiB")
    watched = output_without_rights(daemon, "stats")
    assert "may not watch: access.watch_users does not list it" in watched and "to allow this command" not in watched
    assert "list the user there, or in access.users if it runs engines, and reload the daemon" in watched


@as_root
def test_a_command_that_is_refused_sends_no_other_message() -> None:
    with RunningDaemon("16MiB", "64KiB", "--set", "access.socket_mode=0666") as own:
        assert "may not watch" in output_without_rights(own, "stats")
        refused = [line for line in own.log.read_text().splitlines() if "event=peer_refused" in line]
    assert len(refused) == 1 and "may not watch" in refused[0], refused


def test_no_page_can_be_stored_without_a_daemon(tmp_path: Path) -> None:
    runner = CliRunner(env={"PAGETIER_SOCKET": None})
    done = runner.invoke(main, ["doctor", "--write", "--socket", str(tmp_path / "none.sock")])
    assert done.exit_code == Exit.WRONG
    (line,) = written(done.output)
    assert line.startswith("problem  write: attach") and line.endswith(
        f"{tmp_path}/none.sock: No such file or directory"
    )
