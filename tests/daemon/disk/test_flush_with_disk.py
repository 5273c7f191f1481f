"""Tests flushes with a disk tier: from one tier or both, to disk, and while the disk is down or hangs."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bare_engine import SPACE, Engine
from daemon_turns import Turns
from disk_daemon import DiskDaemon
from eventually import PATIENCE_S, eventually
from pagetier.daemon.cli import flush as flush_command
from pagetier.daemon.disk.disk_flush import _ASKED_AGAIN_S
from pagetier.daemon.index.service import _TIDY_EVERY_S
from pagetier.shm.daemon_link import Link
from pagetier.shm.exit_codes import Exit
from pagetier.shm.protocol import Answer, FetchOutcome, Flush, Flushed
from running_daemon import RunningDaemon, namespace
from terminal import pagetier_on_terminal

FRAMES = 16


@pytest.fixture(scope="module")
def daemon(turns: Turns) -> Iterator[DiskDaemon]:
    with DiskDaemon(FRAMES, before=turns.before) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_there(daemon: DiskDaemon) -> None:
    daemon.wait_open()
    assert daemon.pagetier("flush", "--all", "--yes").exit_code == 0


def test_a_flush_of_memory_keeps_the_pages_on_disk(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = daemon.store_through(engine, range(8))
    result = daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
    assert (result.exit_code, engine.places(numbers)) == (0, {"disk": 8})
    assert "all namespaces: 8 pages, 468.8 KiB\n8 pages dropped" in result.output
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8


def test_a_flush_of_the_disk_keeps_the_pages_in_memory(daemon: DiskDaemon, engine: Engine, turns: Turns) -> None:
    numbers = daemon.store_through(engine, range(8))
    turns.pass_by(math.ceil(_ASKED_AGAIN_S / _TIDY_EVERY_S) + 1)  # it stops to write all pages, as no client polls
    result = daemon.pagetier("flush", "--namespace", SPACE.name, "--tier", "disk", "--yes")
    assert result.exit_code == 0
    assert f"{SPACE.name}: 8 pages on disk" in result.output
    assert "8 pages dropped" in result.output
    assert engine.places(numbers) == {"memory": 8}
    assert daemon.snapshot().tiers.disk.pages == 0
    daemon.pagetier("flush", "--all", "--tier", "memory", "--yes")
    assert engine.places(numbers) == {"nowhere": 8}


def test_flushed_pages_are_not_back_after_a_restart(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = daemon.store_through(engine, range(8))
    result = daemon.pagetier("flush", "--namespace", SPACE.digest.hex()[:8], "--yes")
    assert "8 pages, 468.8 KiB; 8 pages on disk, 468.8 KiB" in result.output
    assert "8 pages dropped" in result.output
    assert engine.places(numbers) == {"nowhere": 8}
    assert daemon.save().synced
    restarts = daemon.report().restarts
    daemon.kill_worker()
    daemon.wait_open(restarts + 1)
    assert engine.places(numbers) == {"nowhere": 8}
    assert "8 on" not in daemon.pagetier("flush", "--all", "--yes").output


def written_when_counted(daemon: DiskDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the disk worker until a flush to disk has counted the pages, as it may write some of them before."""
    worker = daemon.kill_worker(signal.SIGSTOP)
    wait = flush_command._wait

    def resume_and_wait(*arguments: Any) -> None:
        os.kill(worker, signal.SIGCONT)
        wait(*arguments)

    monkeypatch.setattr(flush_command, "_wait", resume_and_wait)


def test_a_flush_to_disk_writes_and_syncs_all_pages(
    daemon: DiskDaemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_when_counted(daemon, monkeypatch)
    engine.store(range(10))
    result = daemon.pagetier("flush", "--to-disk")
    assert result.exit_code == 0
    assert "10 pages, 585.9 KiB written; synced in" in result.output
    assert daemon.snapshot().tiers.disk.pages == 10
    assert daemon.until(lambda disk: disk.clean)
    assert "everything was on disk already; synced in" in daemon.pagetier("flush", "--to-disk").output
    assert engine.places(range(10)) == {"memory": 10}


def test_a_flush_to_disk_shows_progress_on_a_terminal(daemon: DiskDaemon, engine: Engine) -> None:
    engine.store(range(10))
    shown = pagetier_on_terminal(["flush", "--socket", str(daemon.socket), "--to-disk"])
    assert shown.code == 0
    assert "; synced in" in shown.text
    assert daemon.snapshot().tiers.disk.pages == 10


@pytest.mark.parametrize("more", [["--all"], ["--namespace", "x"], ["--tier", "disk"]])
def test_a_flush_to_disk_accepts_no_other_option(daemon: DiskDaemon, more: list[str]) -> None:
    result = daemon.pagetier("flush", "--to-disk", *more)
    assert result.exit_code == Exit.USAGE
    assert "drops nothing: it excludes --namespace" in result.output


def test_a_flush_to_disk_fails_while_no_worker_can_start(daemon: DiskDaemon, engine: Engine) -> None:
    engine.store(range(10))
    with daemon.away():
        result = daemon.pagetier("flush", "--to-disk")
        assert result.exit_code == Exit.WRONG
        assert "Error: " in result.output and "is a file" in result.output
    assert daemon.pagetier("flush", "--to-disk").exit_code == 0


def test_a_flush_to_disk_fails_while_the_worker_is_stopped(
    daemon: DiskDaemon, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.kill_worker(signal.SIGSTOP)
    engine.store(range(10))
    with monkeypatch.context() as patch:
        patch.setattr("pagetier.daemon.cli.flush._STALLED_S", 0.5)
        result = daemon.pagetier("flush", "--to-disk")
    assert result.exit_code == Exit.WRONG
    assert "10 pages, 585.9 KiB not on disk: nothing was written for 30 seconds" in result.output
    daemon.kill_worker(signal.SIGCONT)
    assert daemon.pagetier("flush", "--to-disk").exit_code == 0


def test_a_flush_to_disk_fails_without_a_disk() -> None:
    with RunningDaemon("1MiB") as daemon:
        shown = pagetier_on_terminal(["flush", "--socket", str(daemon.socket), "--to-disk"])
    assert shown.code == Exit.WRONG
    assert "there is no disk tier: set disk.path and disk.size, and restart the daemon" in shown.text


def test_a_flush_to_a_disk_smaller_than_memory_reports_the_rest() -> None:
    with DiskDaemon(128, "8MiB") as daemon, Engine(daemon) as engine:
        engine.store(range(120))
        result = daemon.pagetier("flush", "--to-disk")
        assert result.exit_code == Exit.WRONG, result.output
        assert "in memory only: disk.size is too small" in result.output
        assert "disk.size" in result.output
        written = daemon.snapshot().disk_work.written
        assert written < 200, "pages push each other out"
        assert 30 < daemon.snapshot().tiers.disk.pages < 120
        assert engine.places(range(120)) == {"memory": 120}


# --- while the disk is down or hangs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [["--all"], ["--namespace", SPACE.name]])
def test_pages_flushed_while_the_disk_is_down_do_not_come_back(
    daemon: DiskDaemon, engine: Engine, which: list[str]
) -> None:
    numbers = daemon.store_through(engine, range(8))
    with daemon.away():
        result = daemon.pagetier("flush", *which, "--yes")
        assert result.exit_code == Exit.WRONG
        assert "8 pages dropped" in result.output
        assert "Error: the disk tier is not open" in result.output
        engine.store([7])
    assert engine.places(numbers) == {"nowhere": 7, "memory": 1}
    assert engine.fetch(numbers[:7]) == [FetchOutcome.ABSENT] * 7
    daemon.stop()
    daemon.open()
    assert daemon.snapshot().tiers.disk.pages == 1


def test_a_flush_of_memory_while_the_disk_is_down_keeps_the_pages_on_disk(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = daemon.store_through(engine, range(8))
    with daemon.away():
        assert daemon.pagetier("flush", "--all", "--tier", "memory", "--yes").exit_code == 0
    assert engine.places(numbers) == {"disk": 8}


def test_a_flush_of_another_namespace_while_the_disk_is_down_keeps_the_pages(
    daemon: DiskDaemon, engine: Engine
) -> None:
    numbers = daemon.store_through(engine, range(8))
    with daemon.client() as client, daemon.away():
        client.store(namespace().keys(range(16)), [bytes(1)])
        assert "1 page dropped" in daemon.pagetier("flush", "--namespace", namespace().name, "--yes").output
    assert engine.fetch(numbers) == [FetchOutcome.IN_MEMORY] * 8


def response(link: Link) -> Answer:
    """Reads until there is a response: one read ends after 0.1 s."""
    answers: list[Answer] = []

    def is_answered() -> bool:
        answers.extend(link.read(PATIENCE_S))
        return bool(answers)

    assert eventually(is_answered), "the daemon does not answer"
    return answers[0]


def test_flushed_pages_stay_flushed_when_the_worker_dies_first(daemon: DiskDaemon, engine: Engine) -> None:
    numbers = daemon.store_through(engine, range(8))
    restarts = daemon.report().restarts
    stopped = daemon.kill_worker(signal.SIGSTOP)
    with daemon._observing() as (first, _), daemon._observing() as (second, _):
        for link in (first, second):  # for the second request the index has no page left
            link.send(Flush(1, None), PATIENCE_S)
            assert eventually(lambda: daemon.header().pages == 0)
        os.kill(stopped, signal.SIGKILL)
        for link, pages in ((first, 8), (second, 0)):
            answer = response(link)
            assert isinstance(answer, Flushed)
            assert (answer.dropped, answer.kept) == (pages, 0)
            assert "the disk tier is not open" in answer.trouble
    daemon.wait_open(restarts + 1)
    assert engine.places(numbers) == {"nowhere": 8}
    assert daemon.snapshot().tiers.disk.pages == 0
