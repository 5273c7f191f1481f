"""A start asks the disk for pages of other settings in a child process, because the disk may hang."""

from __future__ import annotations

import os

from pagetier.daemon.unreadable_pages import in_child


def test_the_answer_is_that_of_the_function() -> None:
    assert in_child(lambda: f"not {os.getpid()}", 60.0) not in ("", f"not {os.getpid()}")


def test_a_function_that_fails_has_no_answer() -> None:
    assert in_child(lambda: f"{1 // 0}", 60.0) == ""


def test_a_disk_that_hangs_keeps_no_start_waiting() -> None:
    reader, writer = os.pipe()
    try:
        assert in_child(lambda: str(os.read(reader, 1)), 0.01) == ""
    finally:
        os.close(reader)
        os.close(writer)
