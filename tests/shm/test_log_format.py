"""Log lines: one line per record, readable by any logfmt parser, with a priority if journald reads them."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetier.shm.log_format import Journald, Logfmt, event, priority, sentence_of

PAIR = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "=]+)(?: |$)')


def record(message: str, level: int = logging.INFO, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("pagetierd", level, __file__, 1, message, (), None)
    made.__dict__.update(event("test", **fields))
    return made


def parsed(line: str) -> dict[str, str]:
    """Parses a line as a reader of logfmt does, and asserts that nothing is left over."""
    assert PAIR.sub("", line) == "", line
    return {key: json.loads(value) if value.startswith('"') else value for key, value in PAIR.findall(line)}


@given(st.text(), st.text())
def test_each_record_is_one_line_that_parses_to_its_fields(message: str, value: str) -> None:
    line = Logfmt().format(record(message, why=value))
    assert line.splitlines() in ([line], []), line
    status = parsed(line)
    assert (status["msg"], status["why"], status["event"]) == (message, value, "test")
    assert sentence_of(line) == message


def test_a_line_of_another_program_is_its_own_sentence() -> None:
    assert sentence_of('Traceback: msg="x"') == 'Traceback: msg="x"'


def test_numbers_are_unquoted_and_follow_the_message() -> None:
    line = Logfmt().format(record("3 pages came", pages=3, seconds=0.25))
    assert line.endswith('level=info name=pagetierd event=test msg="3 pages came" pages=3 seconds=0.25')
    assert re.match(r"ts=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line)


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        made = logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "it fails", (), sys.exc_info())
    status = parsed(Logfmt().format(made))
    assert status["level"] == "error"
    assert status["trace"].startswith("Traceback") and status["trace"].endswith("one\ntwo")


@pytest.mark.parametrize(
    ("level", "number"), [("CRITICAL", 3), ("ERROR", 3), ("WARNING", 4), ("INFO", 6), ("DEBUG", 7)]
)
def test_lines_for_journald_have_a_priority_and_no_time(level: str, number: int) -> None:
    line = Journald().format(record("words", getattr(logging, level)))
    assert line.startswith(f"<{number}>level={level.lower()} ")
    assert "ts=" not in line
    assert priority(getattr(logging, level)) == number


LOG = "import logging; from pagetier.shm.log_format import *; log_to_stderr('warning')\n"
LOG += "logging.info('not this'); logging.warning('but this')"


@pytest.mark.parametrize("ours", [True, False])
def test_only_the_stream_that_journald_reads_has_priorities(ours: bool) -> None:
    read, write = os.pipe()
    status = os.fstat(write if ours else read)
    stream = f"{status.st_dev}:{status.st_ino + (not ours)}"
    environ = os.environ | {"JOURNAL_STREAM": stream}
    subprocess.run([sys.executable, "-c", LOG], env=environ, stderr=write, check=True)
    os.close(write)
    with os.fdopen(read) as pipe:
        (line,) = pipe.read().splitlines()
    assert line.startswith("<4>" if ours else "ts=")
    assert 'msg="but this"' in line
