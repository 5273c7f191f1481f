"""Tests workers that cannot start, stay silent or send invalid reports: they are ended and restarted without harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from bare_engine import Engine
from disk_daemon import TroubledDaemon
from fake_worker import impostor
from pagetier.daemon.status.disk_report import Standing
from pagetier.shm.protocol import FetchOutcome
from pagetier.tiers.worker_protocol import WORKER_BUILD

SAYING = (  # a fake worker
    "import msgspec, struct",
    "def message(fields):",
    "    body = msgspec.msgpack.encode(fields)",
    "    return struct.pack('<I', len(body)) + body",
    "STATE = dict.fromkeys('file_bytes cap_bytes used_frames capacity disk_free disk_total last_sync'.split(), 7)",
    "STATE |= {'clean': True, 'opened': 'so'}",
)
LATER = "protocol 99 format 99"


def test_a_worker_that_cannot_start_is_retried_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor(tmp_path, monkeypatch, "os._exit(3)")
    with TroubledDaemon() as daemon, Engine(daemon) as engine:
        assert daemon.until(lambda disk: disk.restarts >= 3)
        report = daemon.report()
        assert report.standing is Standing.DOWN
        assert "ended with exit code 3" in report.trouble
        assert len(daemon.lines("no disk tier")) == 1
        assert report.restarts < 8
        engine.store(range(4))
        assert engine.fetch(range(6)) == [FetchOutcome.IN_MEMORY] * 4 + [FetchOutcome.ABSENT] * 2
        assert "down: its worker ended with exit code 3" in daemon.doctor()
        assert "down, its worker ended" in " ".join(daemon.pagetier("stats").output.split())


@pytest.mark.parametrize(
    "said",
    [
        "b'\\xff' * 100",
        "b'HTTP/1.1 200 OK'",
        "b'\\x07\\0\\0\\0\\x92\\xa5op\\xff\\xfe\\xfd'",
        "message(['inventorypart', bytes(32), b'', b'', bytes(4), []])",
        "message(['inventorypart', bytes(32), bytes(8), bytes(8), bytes(4), []])",
        "message(['wrote', 1, b'\\1' * 99, '', 0])",
        "message(['hasread', 1, 99, b'\\1' * 99, b'', ''])",
        "message(['complete'])",
        "message(['opened', -1, STATE, 0, BUILD])",
        "message(['opened', 1 << 70, STATE, 0, BUILD])",
        "message(['opened', 10, STATE | {'slot_bytes': -1}, 0, BUILD])",
        "message(['opened', 10, STATE | {'slot_bytes': 1 << 17}, 0, BUILD])",
        "message(['opened', 10, STATE | {'slot_bytes': 1 << 60}, 0, BUILD])",
        "message(['opened', 10, STATE, 0, BUILD])"
        " + message(['inventorypart', bytes(32), bytes(8), bytes(8), bytes(4), [SPACE]])"
        " + message(['complete']) + message(['hasread', 1, 0, b'\\1', b'', ''])"
        " + message(['wrote', 1, b'\\7' * 8, '', 0])",
        "message(['statereport', None])",
        "message(['openfailed', 'x' * 99999])",  # a valid report, after which the worker ends
    ],
)
def test_a_worker_that_sends_invalid_reports_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    last = "os._exit(0)" if "openfailed" in said else "time.sleep(99)"
    impostor(
        tmp_path,
        monkeypatch,
        *SAYING,
        "SPACE = [bytes(32), 'nonsense', 16, 0, 0]",
        f"BUILD = {WORKER_BUILD!r}",
        "there.recv(9999)",
        f"there.sendall({said})",
        last,
    )
    with TroubledDaemon() as daemon, Engine(daemon) as engine:
        engine.store(range(12))
        assert daemon.until(lambda disk: disk.restarts or disk.standing is Standing.OPEN), daemon.reported()
        assert engine.fetch([7, 99]) == [FetchOutcome.IN_MEMORY, FetchOutcome.ABSENT]
        assert daemon.findings() == []


@pytest.mark.parametrize(
    ("build", "lines"),
    [
        (LATER, ["import pagetier.tiers.worker_protocol as protocol", f"protocol.WORKER_BUILD = {LATER!r}"]),
        ("unknown", [*SAYING, "there.recv(9999)", "there.sendall(message(['opened', 9, STATE]))", "os._exit(0)"]),
    ],
    ids=["a later one refuses the daemon", "the daemon refuses an earlier one"],
)
def test_a_worker_of_another_version_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str, lines: list[str]
) -> None:
    impostor(tmp_path, monkeypatch, *lines)
    with TroubledDaemon() as daemon, Engine(daemon) as engine:
        assert daemon.until(lambda disk: disk.restarts >= 2), daemon.reported()
        assert daemon.report().standing is Standing.DOWN
        (line,) = daemon.lines("no disk tier")
        assert f"its worker is of another version ({build}): restart pagetierd" in line
        assert not daemon.lines("Traceback")
        engine.store(range(4))
        assert engine.fetch(range(6)) == [FetchOutcome.IN_MEMORY] * 4 + [FetchOutcome.ABSENT] * 2
        (tmp_path / "sitecustomize.py").unlink()
        daemon.wait_open()
        assert daemon.report().trouble == ""


def test_the_daemon_serves_without_a_disk_while_a_worker_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor(tmp_path, monkeypatch, "time.sleep(99)")
    with TroubledDaemon(16, "64MiB", "--set", "disk.stop_timeout=2s") as daemon, Engine(daemon) as engine:
        engine.store(range(40))
        assert daemon.report().standing is Standing.STARTING
        assert "being opened" in daemon.pagetier("flush", "--to-disk").output
        assert engine.fetch([999]) == [FetchOutcome.ABSENT]
        assert daemon.stop() == 0
        (line,) = daemon.lines("event=disk_unwritten")
        assert "disk.stop_timeout = 2s is over" in line
