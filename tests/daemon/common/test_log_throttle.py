"""The log at a limited rate: a line when a fault begins and ends, and a few lines a minute caused by one user."""

from __future__ import annotations

import logging

import pytest

from pagetier.daemon.common.log_throttle import SAME, UNKNOWN_USER, FaultLog, LogThrottle
from pagetier.shm.log_format import event
from virtual_time_loop import OwnTimeLoop


def test_a_fault_that_keeps_returning_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop
) -> None:
    fault = FaultLog("it fails: %s", "it works again")
    with caplog.at_level("INFO"):
        for _ in range(100):
            fault.report("no room")
            fault.report("no room")
            fault.report("")
        assert caplog.messages == ["it fails: no room", "it works again"]
        virtual_time.passes(60.0)
        fault.report("50 % full")
        fault.report("something else")
        fault.report("")
    assert caplog.messages[2:] == ["it fails: 50 % full", "it works again"]


@pytest.mark.usefixtures("virtual_time")
def test_a_fault_without_an_end_line_logs_only_its_begin(caplog: pytest.LogCaptureFixture) -> None:
    fault = FaultLog("a page: %s")
    with caplog.at_level("INFO"):
        for reason in ("", "damaged", "", "damaged"):
            fault.report(reason)
    assert caplog.messages == ["a page: damaged"]


class Lines:
    """A throttle of the test's log."""

    def __init__(self) -> None:
        self._throttle = LogThrottle(logging.getLogger(__name__))

    def log(self, user: int, text: str, *values: object) -> None:
        self._throttle.log(logging.WARNING, user, text, *values, extra=event("test"))


def test_a_user_cannot_fill_the_log(caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop) -> None:
    lines = Lines()
    for _ in range(2):
        for number in range(25):
            lines.log(7, "line %d", number)
        lines.log(8, "another's")
        virtual_time.passes(60.0)
    assert len(caplog.messages) == 2 * (20 + 1) + 1
    assert caplog.messages[21] == "5 more such lines caused by user 7 in one minute were left out"


def test_lines_of_an_unknown_user_are_limited_too(caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop) -> None:
    lines = Lines()
    for _ in range(SAME + 4):
        lines.log(UNKNOWN_USER, "full")
    virtual_time.passes(60.0)
    lines.log(UNKNOWN_USER, "full")
    assert caplog.messages == ["full"] * SAME + ["4 more such lines in one minute were left out", "full"]


def test_equal_lines_are_logged_a_few_times_a_minute(
    caplog: pytest.LogCaptureFixture, virtual_time: OwnTimeLoop
) -> None:
    lines = Lines()
    for _ in range(45):
        lines.log(7, "%s may not attach", "pid 12")
        virtual_time.passes(60 / 46)
    lines.log(7, "%s may not attach", "pid 13")
    assert caplog.messages == ["pid 12 may not attach"] * SAME + ["pid 13 may not attach"]
