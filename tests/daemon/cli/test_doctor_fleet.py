"""`pagetier doctor` tries the fleet's store and reports what the daemon says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from eventually import PATIENCE_S, eventually
from fleet_host import PATIENT
from pagetier.daemon.cli.doctor.fleet_checks import check_fleet
from pagetier.daemon.cli.doctor.result import Level, Result
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.exit_codes import Exit
from pagetier.tiers.fleet.object_store import UNFINISHED
from running_daemon import RunningDaemon

HARNESS = Path(__file__).resolve().parents[2] / "harness"
OPEN = FleetStatus(url="file:///x", standing="open", read=3, written=1)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(HARNESS))
    monkeypatch.syspath_prepend(HARNESS)
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


def patient(url: str, **settings: object) -> RemoteOptions:
    """Returns the settings of a store that may take its time."""
    return structs.replace(RemoteOptions(url=url, timeout=PATIENCE_S, ask_timeout=PATIENCE_S), **settings)


def only(remote: RemoteOptions) -> Result:
    (result,) = check_fleet(remote, FleetStatus())
    return result


def test_no_fleet_is_ok() -> None:
    assert only(RemoteOptions()) == Result(Level.OK, "fleet", "no fleet is configured (remote.url)")


def test_a_store_that_works_is_measured_and_left_as_it_was(store: Path) -> None:
    result = only(patient(f"file://{store}"))
    assert result.level is Level.OK and "a question takes" in result.text, result
    assert "a page of 8.0 MiB is written at " in result.text and " and read at " in result.text
    assert not [path for path in store.rglob("*") if path.is_file()]


def test_a_fleet_that_is_only_read_is_not_written(store: Path) -> None:
    (store / UNFINISHED).mkdir()  # by a host that may write
    store.chmod(0o555)
    result = only(patient(f"file://{store}", write="never"))
    assert result.level is Level.OK and result.text.endswith("; not written to (remote.write)"), result


def test_a_small_buffer_is_enough(store: Path) -> None:
    result = only(patient(f"file://{store}?buffers=1MiB"))
    assert result.level is Level.OK and "a page of 512.0 KiB is written" in result.text, result


def test_what_is_missing_is_named(store: Path) -> None:
    assert "is not a folder: create it" in only(patient(f"file://{store}/none")).text
    assert "cannot be read" in only(patient(f"file://{store}", key_file=store / "none")).text
    failing = only(patient("python://faulty_store:FailsToOpen"))
    assert failing.level is Level.PROBLEM and "cannot be opened: RuntimeError: no such thing" in failing.text


def test_a_folder_that_all_users_may_write_to_is_a_warning(store: Path) -> None:
    store.chmod(0o777)
    rights, tried = check_fleet(patient(f"file://{store}"), FleetStatus())
    assert rights.level is Level.WARNING and tried.level is Level.OK
    assert f"all users may read, forge and delete pages in {store}: chgrp it" in rights.text
    store.chmod(0o2770)
    assert only(patient(f"file://{store}")).level is Level.OK


def test_a_question_that_takes_too_long_is_a_warning(store: Path) -> None:
    (store / "delay").write_text("0.2")
    result = only(patient(f"python://slow_folder_store:SlowFolder{store}", ask_timeout=0.05))
    assert result.level is Level.WARNING and "longer than remote.ask_timeout = 50ms" in result.text, result


@pytest.mark.parametrize("kind", ["ReturnsOther", "Ends", "Prints", "KeepsAll"])
def test_a_store_of_ones_own_that_is_wrong(store: Path, kind: str) -> None:
    (store / "own_store.py").write_text(_OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{HARNESS}:{store}")
        patch.syspath_prepend(store)
        results = list(check_fleet(patient(f"python://own_store:{kind}"), FleetStatus()))
    level, said = {
        "ReturnsOther": (Level.PROBLEM, "a page that was just written came back damaged: the checksum does not match"),
        "Ends": (Level.PROBLEM, "the store's library ended the process of a trial, with exit code 7"),
        "Prints": (Level.OK, "a question takes"),
        "KeepsAll": (Level.WARNING, "could not be removed: the store failed: OSError: kept"),
    }[kind]
    assert results[-1].level is level and said in results[-1].text, results


_OWN = """
import os
from faulty_store import DictStore


class ReturnsOther(DictStore):
    def get(self, name, into):
        length = super().get(name, into)
        into[length - 1] ^= 1
        return length


class Ends(DictStore):
    def put(self, name, data):
        os._exit(7)


class Prints(DictStore):
    def put(self, name, data):
        os.write(1, b"a library says this")
        return super().put(name, data)


class KeepsAll(DictStore):
    def remove(self, name):
        raise OSError("kept")
"""


@pytest.mark.parametrize(
    ("change", "level", "said"),
    [
        ({}, Level.OK, "open; 3 pages read, 1 page written"),
        ({"standing": "down", "trouble": "no answer"}, Level.PROBLEM, "down: no answer"),
        ({"breaker_open": True, "trouble": "late"}, Level.WARNING, "since it does not answer: late"),
        ({"waiting": 1, "write_trouble": "full"}, Level.WARNING, "1 page cannot be written: full"),
        ({"failed": 2, "given_up": "full"}, Level.WARNING, "2 pages given up unwritten: full"),
        ({"damaged": 2}, Level.WARNING, "2 objects had wrong bytes"),
        ({"foreign": 1, "note": "compare remote.key_file"}, Level.WARNING, "compare remote.key_file"),
    ],
)
def test_the_daemons_report_is_shown(store: Path, change: dict[str, object], level: Level, said: str) -> None:
    status = structs.replace(OPEN, **change)
    *_, last = check_fleet(patient(f"file://{store}"), status)
    assert last.level is level and said in last.text, last


def test_the_command_shows_both(store: Path) -> None:
    with RunningDaemon("4MiB", "64KiB", "--set", f"remote.url=file://{store}", *PATIENT) as daemon:
        assert eventually(lambda: daemon.snapshot().fleet.standing == "open")
        result = daemon.pagetier("doctor")
    assert result.exit_code == Exit.OK, result.output
    assert "fleet store" in result.output and "open; 0 pages read, 0 pages written" in result.output
