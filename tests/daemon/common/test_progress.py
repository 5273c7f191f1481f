"""Tests progress reports: lines in a log, a bar on a terminal."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import select
import sys

import pytest

from pagetier.daemon.common.progress import ProgressLines, progress_bar, progress_for_people
from pagetier.daemon.host.prefault import prefault
from pagetier.shm import clock

MIB = 1 << 20


def nothing(offset: int, length: int) -> None:
    pass


def lines_for(caplog: pytest.LogCaptureFixture, steps: list[tuple[float, int]], total: int) -> list[str]:
    times = iter([0.0, *(at for at, _ in steps)])
    with caplog.at_level(logging.INFO), pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now", lambda: next(times))
        lines = ProgressLines("arena", logging.getLogger("test"))
        for _, done in steps:
            lines(done, total)
    return [record.getMessage() for record in caplog.records]


def test_work_of_seconds_logs_a_line_at_each_quarter(caplog: pytest.LogCaptureFixture) -> None:
    lines = lines_for(caplog, [(done / 20, done * MIB) for done in range(101)], 100 * MIB)
    assert [re.search(r"\((\d+) %\)", line)[1] for line in lines] == ["25", "50", "75", "100"]  # type: ignore[index]
    assert lines[0] == "arena: 25.0 MiB of 100.0 MiB (25 %), 20.0 MiB/s, 4 s left"
    assert lines[-1] == "arena: 100.0 MiB of 100.0 MiB (100 %) in 5.0 s"


def test_fast_work_logs_only_its_end(caplog: pytest.LogCaptureFixture) -> None:
    lines = lines_for(caplog, [(done / 1000, done * MIB) for done in range(101)], 100 * MIB)
    assert lines == ["arena: 100.0 MiB of 100.0 MiB (100 %) in 0.1 s"]


def test_slow_work_logs_a_line_each_two_seconds(caplog: pytest.LogCaptureFixture) -> None:
    steps = [(tenth / 10, min(tenth, 99)) for tenth in range(201)]
    lines = lines_for(caplog, steps, 1000)
    assert len(lines) == 10
    assert " 17 s left" in lines[0] or " 98 s left" in lines[0]


def test_the_end_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert len(lines_for(caplog, [(0.0, 0), (1.0, 0), (9.0, 0), (10.0, 0)], 0)) == 1


def test_without_a_terminal_there_are_lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with caplog.at_level(logging.INFO), progress_for_people("arena", logging.getLogger("test")) as progress:
        prefault(nothing, 8 * MIB, threads=1, chunk=MIB, progress=progress)
    assert caplog.records
    assert stream.getvalue() == ""


def written_to(controller: int) -> str:
    """Returns all output to a terminal, which arrives in parts."""
    text = b""
    while select.select([controller], [], [], 0.2)[0]:
        text += os.read(controller, 1 << 16)
    return text.decode()


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        with caplog.at_level(logging.INFO), progress_for_people("the arena", logging.getLogger("test")) as progress:
            prefault(nothing, 8 * MIB, threads=1, chunk=MIB, progress=progress)
        text = written_to(controller)
    os.close(controller)
    assert "the arena" in text
    assert ("8.4/8.4 MB" in text or "8.0/8.0 MiB" in text) and "/?" not in text
    assert not caplog.records


def test_the_bar_goes_to_the_given_stream() -> None:
    stream = io.StringIO()
    with progress_bar("somewhere", stream) as progress:
        progress(5, 10)
    assert "somewhere" in stream.getvalue()
