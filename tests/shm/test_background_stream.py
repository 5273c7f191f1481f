"""Text on its way to a reader that does not read, and to a descriptor that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from eventually import eventually
from pagetier.shm.background_stream import BackgroundStream

LINE = "a line of text\n"
MOST = 4096


class Pipe:
    """A pipe, and a stream to it."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        os.set_blocking(self.reading, False)
        self.target = os.fdopen(writing, "w", encoding="ascii")
        self.stream = BackgroundStream(self.target, lambda lines: f"{lines} lost\n", MOST)

    def fill(self) -> int:
        """Fills the pipe, and returns with how many bytes."""
        writing = self.target.fileno()
        os.set_blocking(writing, False)
        filled = os.write(writing, b"-" * (1 << 20))
        os.set_blocking(writing, True)
        return filled

    def read(self) -> str:
        """Returns what is in the pipe."""
        try:
            return os.read(self.reading, 1 << 20).decode()
        except BlockingIOError:
            return ""

    def read_until(self, words: str) -> str:
        """Reads until these words came, and returns all that came."""
        pieces: list[str] = []

        def came() -> bool:
            pieces.append(self.read())
            return words in "".join(pieces)

        assert eventually(came), pieces
        return "".join(pieces)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reading)


def test_text_is_written_when_write_returns_and_in_order(pipe: Pipe) -> None:
    for number in range(100):
        pipe.stream.write(f"{number}\n")
    pipe.stream.finish()
    assert pipe.read() == "".join(f"{number}\n" for number in range(100))


def test_lines_that_do_not_fit_are_counted_after_those_that_waited(pipe: Pipe) -> None:
    filled = pipe.fill()
    for _ in range(2 * MOST // len(LINE)):
        pipe.stream.write(LINE)
    kept = MOST // len(LINE)
    lost = f"{2 * MOST // len(LINE) - kept} lost\n"
    assert pipe.read_until(lost) == "-" * filled + LINE * kept + lost
    pipe.stream.write(LINE)
    assert pipe.read_until(LINE) == LINE


def test_a_descriptor_that_another_process_made_non_blocking_loses_nothing(pipe: Pipe) -> None:
    os.set_blocking(pipe.target.fileno(), False)
    filled = os.write(pipe.target.fileno(), b"-" * (1 << 20))
    pipe.stream.write(LINE)
    assert pipe.read_until(LINE) == "-" * filled + LINE


def test_lines_that_a_full_disk_refused_are_counted_when_it_has_room(pipe: Pipe) -> None:
    full, kept = os.open("/dev/full", os.O_WRONLY), os.dup(pipe.target.fileno())
    os.dup2(full, pipe.target.fileno())
    pipe.stream.write(LINE + LINE)
    pipe.stream.write(LINE)
    pipe.stream.finish()
    os.dup2(kept, pipe.target.fileno())
    os.close(full)
    os.close(kept)
    pipe.stream.write(LINE)
    assert pipe.read_until(LINE) == "3 lost\n" + LINE


def test_characters_that_the_encoding_lacks_are_escaped(pipe: Pipe) -> None:
    pipe.stream.write("\u540d\n")
    assert pipe.read_until("\n") == "\\u540d\n"


def test_it_is_like_the_stream_that_it_replaces(pipe: Pipe) -> None:
    same: TextIO = pipe.target
    stream = pipe.stream
    assert (stream.encoding, stream.fileno(), stream.isatty()) == (same.encoding, same.fileno(), False)
