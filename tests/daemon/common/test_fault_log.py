"""FaultLog logs one line when a fault begins and one when it ends, at a limited rate."""

from __future__ import annotations

import pytest

from pagetier.daemon.common.log_throttle import MINUTE_S, FaultLog


def test_a_fault_that_keeps_returning_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    fault = FaultLog("it fails: %s", "it works again", lambda: now)
    with caplog.at_level("INFO"):
        for _ in range(100):
            fault.report("no room")
            fault.report("no room")
            fault.report("")
        assert caplog.messages == ["it fails: no room", "it works again"]
        now += MINUTE_S
        fault.report("50 % full")
        fault.report("something else")
        fault.report("")
    assert caplog.messages[2:] == ["it fails: 50 % full", "it works again"]


def test_a_fault_without_an_end_line_logs_only_its_begin(caplog: pytest.LogCaptureFixture) -> None:
    fault = FaultLog("a page: %s")
    with caplog.at_level("INFO"):
        for reason in ("", "damaged", "", "damaged"):
            fault.report(reason)
    assert caplog.messages == ["a page: damaged"]
